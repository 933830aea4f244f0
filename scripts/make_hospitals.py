"""Writes made-up tables of four hospitals and one of new patients, for the worked example in GUIDE.md: nobody's data.

Whether a patient comes back within a month follows from age, blood pressure, sugar, smoking and the ward, with chance. The
hospitals differ in size and in whom they see, and in each some values are missing. Needs nothing but Python.

    python scripts/make_hospitals.py FOLDER
"""

import csv
import math
import pathlib
import random
import sys

COLUMNS = ["patient", "age", "sex", "pressure", "sugar", "smokes", "ward", "readmitted"]
WARDS = ["heart", "surgery", "internal"]
# Name: patients, mean age, weights of the wards, share of blood sugars that were not measured.
HOSPITALS = {
    "north": (150, 70, [8, 1, 1], 0.05),
    "south": (300, 45, [1, 6, 3], 0.30),
    "east": (500, 60, [2, 2, 6], 0.10),
    "west": (900, 52, [3, 4, 3], 0.02),
    "new": (1000, 57, [1, 1, 1], 0.10),
}


def patient(number, draw, mean_age, wards, unmeasured):
    age = min(max(draw.gauss(mean_age, 14), 18), 100)
    sex, smokes = draw.choice("fm"), draw.random() < 0.25
    pressure = draw.gauss(110 + 0.4 * age, 12)
    sugar = math.exp(draw.gauss(math.log(95), 0.2))
    ward = draw.choices(WARDS, wards)[0]
    risk = -0.6 + 0.05 * (age - 57) + 1.0 * smokes + {"heart": 1.0, "surgery": -0.8, "internal": 0.0}[ward]
    risk += 1.2 * (pressure > 145) + 0.03 * (sugar - 95) - 0.06 * max(0, 40 - age)
    back = draw.random() < 1 / (1 + math.exp(-1.5 * risk))
    shown = "" if draw.random() < unmeasured else f"{sugar:.0f}"
    return [number, f"{age:.0f}", sex, f"{pressure:.0f}", shown, "yes" if smokes else "no", ward, "yes" if back else "no"]


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (patients, mean_age, wards, unmeasured) in HOSPITALS.items():
        draw = random.Random(name)
        with open(folder / f"{name}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(patient(number, draw, mean_age, wards, unmeasured) for number in range(1, patients + 1))


if __name__ == "__main__":
    main()
