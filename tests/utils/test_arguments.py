"""Arguments of the command line, and options from a configuration file."""

import pytest

from jztree_utils import mass_function
from jztree_utils.cli._commands import arguments
from jztree_utils.cli._commands.arguments import parse

pytestmark = pytest.mark.fast


@pytest.fixture
def config(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "run.toml"
        path.write_text(text)
        return f"--config={path}"

    return write


def test_flags_come_before_the_configuration(config) -> None:
    written = config("npart-min = 32\nk = 5\n[fof]\nsnapshot = 'snap_001.hdf5'\nb = 0.15\nproperties = true\n")
    args = parse(["fof", written])
    assert (args.snapshot, args.npart_min, args.b, args.properties) == (["snap_001.hdf5"], 32, 0.15, True)
    args = parse(["fof", "other.hdf5", written, "--npart-min", "50"])
    assert (args.snapshot, args.npart_min, args.b) == (["other.hdf5"], 50, 0.15)
    assert parse(["knn", "a.npy", written]).k == 5


def test_flag_for_the_linking_length_overrides_the_other_option(config) -> None:
    args = parse(["fof", "a", config("rlink = 0.3"), "--b", "0.1"])
    assert (args.rlink, args.b) == (None, 0.1)


def test_lists_of_a_configuration(config) -> None:
    args = parse(["fof", config("snapshot = ['a', 'b']\nattach = [0, 4]\nboxsize = [1.5, 2]\ndebug = false")])
    assert (args.snapshot, args.attach, args.boxsize, args.debug) == (["a", "b"], "0,4", "1.5,2", False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linking = 2", r"has an option 'linking', which fof does not have; use --b .* Its options are .*npart-min"),
        ("colour = 2", r"has an option 'colour', which fof does not have; its options are .*npart-min"),
        ("[fof]\nk = 3", r"has an option 'k', which fof does not have"),
        ("fof = 3", r"but it is a command; write \[fof\] above its options"),
        ("b = true", r"has True as b; it must be a string, a number"),
        ("properties = 3", r"has 3 as properties; it must be true or false"),
        ("b = [", r"is not valid TOML"),
        ("[FoF]\nb = 0.2", r"has a table \[FoF\], which is not a command; use one of fof, knn, .*, view, verify, info"),
        ("npart-min = 99999999999999999999", r"Argument --npart-min: '99999999999999999999' is not a whole number"),
        ("output = ''", r"output is empty; give a name"),
        ("type = [0, 1]", r"Argument --type: '0,1' is not a whole number"),
        ("b = 'wide'", r"Argument --b: 'wide' is not a number"),
    ],
)
def test_invalid_configuration_raises(config, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(["fof", "a", config(text)])


@pytest.mark.parametrize("text", ["", " 1", "1.5", "1_0", "1e3", "٣", "９", "0x10", "inf", "nan", "9" * 19, "--5"])
def test_invalid_integer_arguments_raise(text: str) -> None:
    for option in ("--npart-min", "--type"):
        with pytest.raises(ValueError, match=f"Argument {option}: .* is not a whole number with at most 18 digits; "):
            parse(["fof", "a", f"{option}={text}"])
    assert parse(["fof", "a", "--npart-min", "9" * 18]).npart_min == 10**18 - 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a number"),
        ("1_0", "not a number"),
        ("٣.٥", "not a number"),
        ("1e400", "too large"),
        ("1e-400", "too small"),
        ("1e", "not a number"),
    ],
)
def test_invalid_float_arguments_raise(text: str, message: str) -> None:
    for option in ("--b", "--rlink"):
        with pytest.raises(ValueError, match=f"Argument {option}: '{text}' is {message}; see"):
            parse(["fof", "a", f"{option}={text}"])


@pytest.mark.parametrize("text", ["1", "+1.5", ".5", "5.", "-2E-3", "0e-400", "5e-324"])
def test_numbers_are_parsed_like_python_floats(text: str) -> None:
    assert parse(["fof", "a", f"--rlink={text}"]).rlink == float(text)


def test_empty_or_invalid_names_raise() -> None:
    for option in ("output", "plot", "pos", "format", "config", "attach", "boxsize"):
        with pytest.raises(ValueError, match=rf"{option} is empty; give a name|invalid choice"):
            parse(["fof", "a", f"--{option}="])
    with pytest.raises(ValueError, match="snapshot is empty; give a name"):
        parse(["fof", "a", " "])
    with pytest.raises(ValueError, match=r"snapshot is 'a\\x00', with a null character"):
        parse(["fof", "a\0"])
    assert parse(["plot", "density", "a", "--title", ""]).title == ""


def test_missing_configuration(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"The configuration file .* does not exist"):
        parse(["fof", "a", f"--config={tmp_path / 'none.toml'}"])
    with pytest.raises(ValueError, match="cannot be read"):
        parse(["fof", "a", f"--config={tmp_path}"])


def test_models_are_those_of_mass_functions() -> None:
    assert tuple(mass_function.MODELS) == arguments.MODELS
