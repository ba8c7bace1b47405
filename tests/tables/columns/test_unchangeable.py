"""Columns that nobody can change are pointed out by their names, unless the user has said what may
change.
"""

import warnings

import numpy as np
import pandas as pd
import pytest

import counterfactual_training as ct
from counterfactual_training.cli.flags import in_flags
from counterfactual_training.tables.columns.unchangeable import (
    cannot_change,
    unchangeable_warning,
)

# Names of columns in public tables on credit, health, work, insurance and census.
NOBODY = """
age Age AGE age_years age_in_years AgeInYears PatientAge patient_age customer_age applicant_age
driver_age drivers_age age_group AgeGroup agegroup AGEGROUP age_cat AgeCategory age_band
age.first age2 mean_age average_age AgeOfOnset age_at_loan AgeAtPolicyStart age_of_policyholder
policyholder_age applicant_age_above_62 household_age gestational_age dob DOB dob_year DOBYear
birth_year BirthYear birthyear year_of_birth YearOfBirth DateOfBirth date_of_birth birthdate
birthday DAYS_BIRTH birth_month country_of_birth CountryOfBirth place_of_birth birthplace
birth_weight yob Sex SEX sex applicant_sex co-applicant_sex personal_status_and_sex gender
Gender CODE_GENDER race Race applicant_race_1 derived_race ethnicity Ethnicity ethnic_group
applicant_ethnicity hispanic Hispanic caste nationality Nationality native-country
native_country NativeCountry native_language mother_tongue country_of_origin national_origin
blood_type BloodGroup marital marital_status MaritalStatus country state addr_state region
foreign_worker ForeignWorker earliest_credit_line EarliestCreditLine id ID customer_id CustomerID
member_id customer_number account_no zip zip_code ZipCode postcode plz PostalCode
"""
SOMEBODY = """
account_age AccountAge loan_age LoanAge vehicle_age Vehicle_Age VehicleAge car_age OWN_CAR_AGE
age_of_car age_of_vehicle AgeOfVehicle age_of_the_building property_age house_age HouseAge
housing_median_age building_age company_age firm_age credit_age credit_history_age
oldest_account_age average_age_of_accounts policy_age machine_age equipment_age roof_age average
Average stage tumor_stage mileage percentage wage hourly_wage wages language languages garage
mortgage usage usage_days package page pages image marriage voltage coverage storage damage
acreage village_size manager raceway race_time race_distance sexton sextant sexual_partners
sex_partners gender_gap sex_ratio generation general agency agenda agent eager embrace bracelet
terrace trace birth_control births birth_rate birthmark
origin date order_state number number_of_loans num_loans no_of_loans product_code
width idle video date year_of_sale age_gap job education degree occupation residence
citizenship_years blood_pressure group type
"""


@pytest.mark.parametrize(
    "name", [*NOBODY.split(), "birth year", "date of birth", "applicant's age", "Age (years)"]
)
def test_names_that_say_so(name):
    assert cannot_change(name)


@pytest.mark.parametrize(
    "name",
    [*SOMEBODY.split(), "account age", "age of oldest account", "Age of vehicle (months)"],
)
def test_names_that_do_not(name):
    assert not cannot_change(name)


def test_fit_points_them_out_once_and_says_what_to_write():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(20, 70, 80), "debt": rng.normal(size=80)})
    y = frame["debt"] > 0
    settings = {"epochs": 1, "gate": "none", "progress": False}
    with pytest.warns(
        UserWarning, match=r'"age": nobody can change this.*state mutability=\{"age": "none"\}'
    ):
        ct.CounterfactualClassifier(**settings).fit(frame, y)
    for stated in ({}, {"debt": "decrease"}):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            ct.CounterfactualClassifier(**settings, mutability=stated).fit(frame, y)


def test_numbers_that_only_count_rows_are_pointed_out():
    """Amounts, which repeat or lie far apart, are not, though all may differ."""
    rng = np.random.default_rng(0)
    n = 200
    frame = pd.DataFrame(
        {
            "reference": 100_000 + rng.permutation(n),
            "amount": rng.choice(9000, n, replace=False),
            "points": rng.integers(0, n, n),
            "share": np.linspace(0, 1, n) * 250,
        }
    )
    with pytest.warns(
        UserWarning, match=r'^"reference": nobody can .* numbers that only count'
    ):
        ct.CounterfactualClassifier(epochs=1, gate="none").fit(frame, frame["amount"] > 4000)


def test_the_command_speaks_of_its_flag():
    schema = ct.Schema.infer(pd.DataFrame({"age": [1, 2, 3, 4], "sex": ["f", "m", "f", "m"]}))
    assert in_flags(unchangeable_warning(schema)).endswith("; add --immutable age sex")
    schema = ct.Schema.infer(
        pd.DataFrame({"Age (years)": [1, 2, 3, 4], 'the "sex"': ["f", "m", "f", "m"]})
    )
    assert in_flags(unchangeable_warning(schema)).endswith(
        """; add --immutable 'Age (years)' 'the "sex"'"""
    )
