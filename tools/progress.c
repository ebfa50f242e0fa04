/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/progress.h"
#include "tools/clock.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WIDTH = 40, REDRAW_NS = 50 * 1000 * 1000 };

static void draw(struct progress *p, uint64_t now)
{
  static const char full[] = "########################################";
  static const char empty[] = "........................................";
  double share = p->total ? (double)p->done / (double)p->total : 1;
  int n = (int)((share > 1 ? 1 : share) * WIDTH);

  fprintf(stderr, "\r%-10s [%.*s%.*s] %3d%%", p->label, n, full, WIDTH - n, empty, n * 100 / WIDTH);
  p->drawn_ns = now;
}

void oct_progress_begin(struct progress *p, const char *label, uint64_t total)
{
  *p = (struct progress){.on = isatty(STDERR_FILENO) == 1, .label = label, .total = total};
  if (p->on)
    draw(p, oct_now_ns());
}

void oct_progress_step(struct progress *p, uint64_t n)
{
  uint64_t now;

  p->done += n;
  if (!p->on)
    return;
  now = oct_now_ns();
  if (now - p->drawn_ns >= REDRAW_NS)
    draw(p, now);
}

void oct_progress_end(struct progress *p)
{
  if (p->on)
    fprintf(stderr, "\r%*s\r", 10 + 2 + WIDTH + 7, "");
  p->on = false;
}
