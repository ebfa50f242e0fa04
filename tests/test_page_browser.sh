#!/bin/bash
# SPDX-License-Identifier: MIT
# The pages of octool run --html and octool inspect --html in headless Chromium: no word on its console, no request, the sums of
# the data, every control by keyboard, what is under the pointer, light and dark with enough contrast, no overlapping text on
# wide and narrow screens, hostile names, 300,000 blocks. Skipped, aloud, without Chromium.
set -euo pipefail

octool=${top_builddir:?}/tools/octool
tests=${top_srcdir:?}/tests
if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null && ! command -v google-chrome >/dev/null; then
  echo "SKIPPED: the pages were not looked at in a browser: Chromium is not there; Debian's package is chromium"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

"$octool" sample s.safetensors --params 200000 >/dev/null
"$octool" run --seconds 0.5 --swap 2 --html run.html s.safetensors >/dev/null
"$octool" inspect --html insp.html s.safetensors >/dev/null
"$octool" run --seconds 0 --swap 0 --inject orphan --html orphan.html s.safetensors >/dev/null 2>&1 || [ $? -eq 1 ]
printf '%s\tF32\t1\t4\n' '</script><script>document.title="alert"</script>' '<img src=x onerror="alert(1)">' "\"'\`&lt;" \
  >odd.tsv
"$octool" inspect --shapes odd.tsv --html odd.html >/dev/null
python3 - >many.tsv <<'END'
for layer in range(100):
    for expert in range(1000):
        for part, kind, size in (("down.suh", "F16", 4096), ("down.svh", "F16", 1024), ("up.trellis", "I16", 70000)):
            print(f"model.layers.{layer}.experts.{expert}.{part}\t{kind}\t{size // 2}\t{size}")
END
"$octool" inspect --shapes many.tsv --html many.html >/dev/null
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$tests timeout 800 python3 "$tests/page_browser.py" run.html insp.html orphan.html odd.html many.html
