"""A local web view: results that cannot leave the device, and the person's privacy page."""

from device_runtime.view.server import View, start_view
from device_runtime.view.source import Recorder, ResultPage, Results

__all__ = ["Recorder", "ResultPage", "Results", "View", "start_view"]
