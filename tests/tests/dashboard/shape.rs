//! Whether an answer has the shape that the OpenAPI file says: what it promises is there, and nothing is there that it does
//! not describe. The second makes the file complete: readers have to pass over fields that they do not know, this does not.

use serde_json::Value;

/// The file.
pub(super) struct Shapes(Value);

impl Shapes {
    pub(super) fn new(file: Value) -> Shapes {
        assert_eq!(file["openapi"], "3.1.0");
        Shapes(file)
    }

    /// What can be asked for.
    pub(super) fn paths(&self) -> Vec<String> {
        self.0["paths"].as_object().expect("paths").keys().cloned().collect()
    }

    /// Checks the body of an answer with this status.
    pub(super) fn check(&self, path: &str, status: &str, body: &Value) {
        let content = &self.0["paths"][path]["get"]["responses"][status]["content"];
        let schema = &content["application/json"]["schema"];
        assert!(schema.is_object(), "{path} says nothing of {status}");
        self.check_value(path, schema, body);
    }

    /// Checks a record: the fields of all records, and beside them those of its kind.
    pub(super) fn check_record(&self, record: &Value) {
        let name = match record["kind"].as_str().expect("a kind") {
            "run" => "RunFacts",
            "sample" => "Sample",
            "peers" => "Peers",
            "exchange" => "ExchangeFacts",
            "event" => "EventFacts",
            "missed" => "Missed",
            "end" => "EndFacts",
            other => panic!("the file does not know {other}"),
        };
        let envelope = &self.0["components"]["schemas"]["Record"];
        let is_of_all = |field: &&String| envelope["properties"].get(field.as_str()).is_some();
        let fields = record.as_object().expect("an object");
        let part = |of_all: bool| {
            let chosen = fields.iter().filter(|(field, _)| is_of_all(field) == of_all);
            Value::Object(chosen.map(|(field, value)| (field.clone(), value.clone())).collect())
        };
        self.check_value("record", envelope, &part(true));
        self.check_value(name, &self.0["components"]["schemas"][name], &part(false));
    }

    fn check_value(&self, place: &str, schema: &Value, value: &Value) {
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.trim_start_matches("#/components/schemas/");
            let named = &self.0["components"]["schemas"][name];
            assert!(named.is_object(), "{place}: there is no {name}");
            return self.check_value(place, named, value);
        }
        if let Some(either) = schema["oneOf"].as_array() {
            let other = either.iter().find(|one| one["type"] != "null").expect("something else than null");
            if !value.is_null() {
                self.check_value(place, other, value);
            }
            return;
        }
        let types: Vec<&str> = match &schema["type"] {
            Value::String(one) => vec![one],
            several => several.as_array().expect("types").iter().filter_map(Value::as_str).collect(),
        };
        assert!(types.iter().any(|name| is_a(name, value)), "{place}: {value} is none of {types:?}");
        if let Some(allowed) = schema["enum"].as_array() {
            assert!(allowed.contains(value), "{place}: {value} is none of {allowed:?}");
        }
        match value {
            Value::Object(fields) => self.check_fields(place, schema, fields),
            Value::Array(items) if schema["items"].is_object() => {
                items.iter().for_each(|item| self.check_value(place, &schema["items"], item));
            }
            _ => {}
        }
    }

    fn check_fields(&self, place: &str, schema: &Value, fields: &serde_json::Map<String, Value>) {
        for field in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            assert!(fields.contains_key(field), "{place}.{field} is missing");
        }
        for (field, value) in fields {
            let place = format!("{place}.{field}");
            match (schema["properties"].get(field), &schema["additionalProperties"]) {
                (Some(known), _) => self.check_value(&place, known, value),
                (None, Value::Bool(true)) => {}
                (None, other) if other.is_object() => self.check_value(&place, other, value),
                (None, _) => panic!("{place} is not described"),
            }
        }
    }
}

fn is_a(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        _ => false,
    }
}
