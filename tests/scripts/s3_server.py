"""An S3 store that checks signatures: moto with a user, a policy and a bucket of 1,002 texts. Prints its address and the user's
keys, and ends with its standard input."""

import json
import os
import sys

TEXTS = 1001

# So many requests without a check: those that make the user (3), the bucket (1) and its objects. Afterwards each is checked.
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = str(3 + 1 + TEXTS + 2)
os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1")

import boto3
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
url = "http://127.0.0.1:%d" % server.get_host_and_port()[1]
users = boto3.client("iam", endpoint_url=url)
users.create_user(UserName="somebody")
key = users.create_access_key(UserName="somebody")["AccessKey"]
allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
users.put_user_policy(UserName="somebody", PolicyName="all", PolicyDocument=json.dumps(allowed))
store = boto3.client("s3", endpoint_url=url)
store.create_bucket(Bucket="texts")
for number in range(TEXTS):
    store.put_object(Bucket="texts", Key="books/part-%05d.txt" % number, Body=b"line %d of a book\n" % number * 3)
store.put_object(Bucket="texts", Key="books/deep/a.txt", Body=b"a folder below\n" * 100)
store.put_object(Bucket="texts", Key="books-of-others/a.txt", Body=b"not asked for\n")
print(url, key["AccessKeyId"], key["SecretAccessKey"], flush=True)
sys.stdin.read()
