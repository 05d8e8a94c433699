"""The declarations of the settings."""

from incoming_payments.server.config.tables import TABLES


def test_setting_without_a_default_describes_its_absence() -> None:
    """An optional setting has either a default or a text in `otherwise`."""
    for table in TABLES:
        for setting in table.settings:
            assert (setting.default is None) == bool(setting.otherwise), setting.name
            assert setting.meaning
