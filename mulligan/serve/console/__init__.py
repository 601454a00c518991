"""The console: pages for people, at `/` and below `/console` (docs/console.md).

    console_pages.py (what is read), console_forms.py (what people send)
      -> run_page.py, run_rows.py, misunderstood_tool.py, waiting_page.py: what a page shows, through `Runs`, as the API does
      -> step_events.py (which events a page has; mulligan/run_view reads them), timeline.py, argument_form.py
      -> rendering.py, templates/ and assets/
    live_steps.py: the stream of a run's page; sessions.py: who has signed in

A page is rendered on the server, from the templates alone: there is no build step. The modules of assets/ replace parts of a
page by newer ones that the server has rendered; without them each page can be read.
"""
