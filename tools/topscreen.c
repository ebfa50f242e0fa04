/* SPDX-License-Identifier: MIT */
/* octool top's screen: ncurses, where configure found it. */
#include "config.h"

#include "tools/top.h"
#include "tools/clock.h"
#include "tools/interrupt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_dumb(void)
{
  const char *term = getenv("TERM");

  return !term || !*term || strcmp(term, "dumb") == 0;
}

#ifndef HAVE_NCURSES

const char *oct_top_no_screen(void)
{
  return "this octool was built without ncurses";
}

enum top_end oct_top_screen(struct top *t, struct fault *why)
{
  (void)t;
  oct_fault_write(why, "%s", oct_top_no_screen());
  return TOP_FAILED;
}

#else

#include <ncurses.h>

const char *oct_top_no_screen(void)
{
  if (isatty(STDOUT_FILENO) != 1)
    return "standard output is no terminal";
  if (isatty(STDIN_FILENO) != 1)
    return "standard input is no terminal, so there are no keys";
  return is_dumb() ? "TERM says that the terminal can draw nothing" : NULL;
}

/* ---- Drawing ---- */

struct screen {
  struct top *top;
  size_t first;                  /* line of the text that stands below the head */
  bool help, colour;
};

static const char *const help[] = {
  "q        quit",
  "s        sort by the next of: live, builds, retired, name, newest",
  "p space  hold this look, and go on",
  "+ -      look more often, less often",
  "up down  move through the models; page up, page down too",
  "h ?      this help, and away again",
  "",
  "Figures are the process's own, read from outside: it does nothing for it.",
  "Hits are those of all models; the rest is a model's. FREE is what its arenas",
  "still have; RETIRED waits for a stream, a graph or teardown.",
};
enum { HELP_LINES = sizeof help / sizeof help[0], NAP_MS = 100 };

static attr_t attributes(const struct screen *s, enum top_style style)
{
  if (style == STYLE_TITLE)
    return A_BOLD;
  if (style == STYLE_HEADER)
    return A_REVERSE;
  if (style == STYLE_ALERT)
    return A_BOLD | (s->colour ? (attr_t)COLOR_PAIR(1) : 0);
  return A_NORMAL;
}

static void draw_line(int y, const char *text, attr_t how)
{
  attrset((int)how);
  mvaddnstr(y, 0, text, COLS);
  if (how & A_REVERSE)
    for (int x = (int)strlen(text); x < COLS; x++)
      addch(' ');
  attrset(A_NORMAL);
}

static size_t head_lines(const struct top_text *t)
{
  size_t n = 0;

  while (n < t->count && t->line[n].style != STYLE_HEADER)
    n++;
  return n < t->count ? n + 1 : n;
}

static void draw_help(int y)
{
  for (size_t i = 0; i < HELP_LINES && y + (int)i < LINES - 1; i++)
    draw_line(y + (int)i, help[i], A_NORMAL);
}

static void draw_foot(const struct screen *s)
{
  char foot[128];

  snprintf(foot, sizeof foot, "q quit  s sort: %s  p %s  h help  every %.1f s", oct_top_sort_name(s->top->view.sort),
           s->top->view.paused ? "go on" : "pause", s->top->interval);
  draw_line(LINES - 1, foot, A_BOLD);
}

static bool draw(struct screen *s, struct fault *why)
{
  struct top_text *t = &s->top->text;
  size_t head, models, room, y;

  s->top->view.width = COLS < TOP_MOST_WIDTH ? (unsigned)COLS : TOP_MOST_WIDTH;
  if (!oct_top_write(t, &s->top->view))
    return oct_fault(why, "no memory for the screen");
  head = head_lines(t);
  models = t->count - head;
  room = LINES > (int)head + 1 ? (size_t)LINES - head - 1 : 0;
  if (s->first + room > models)
    s->first = models > room ? models - room : 0;
  erase();
  for (y = 0; y < head && (int)y < LINES - 1; y++)
    draw_line((int)y, t->line[y].text, attributes(s, t->line[y].style));
  if (s->help)
    draw_help((int)head);
  for (size_t i = s->first; !s->help && i < models && y < head + room; i++, y++)
    draw_line((int)y, t->line[head + i].text, attributes(s, t->line[head + i].style));
  draw_foot(s);
  refresh();
  return true;
}

/* ---- Keys ---- */

static void move_by(struct screen *s, int lines)
{
  if (lines < 0)
    s->first -= s->first < (size_t)-lines ? s->first : (size_t)-lines;
  else
    s->first += (size_t)lines;   /* draw brings it back into bounds */
}

static void faster(struct top *t, double by)
{
  double next = t->interval * by;

  if (next >= 0.1 && next <= 60)
    t->interval = next;
}

/* False: quit. */
static bool take_key(struct screen *s, int key)
{
  struct top *t = s->top;

  switch (key) {
  case 'q': case 'Q': return false;
  case 's': t->view.sort = (enum top_sort)((t->view.sort + 1) % SORTS); return true;
  case 'p': case ' ': t->view.paused = !t->view.paused; return true;
  case 'h': case '?': s->help = !s->help; return true;
  case '+': faster(t, 0.5); return true;
  case '-': faster(t, 2); return true;
  case KEY_UP: move_by(s, -1); return true;
  case KEY_DOWN: move_by(s, 1); return true;
  case KEY_PPAGE: move_by(s, -LINES); return true;
  case KEY_NPAGE: move_by(s, LINES); return true;
  default: return true;          /* KEY_RESIZE too: what follows draws anew */
  }
}

/* ---- The loop ---- */

static enum top_end watch(struct screen *s, struct fault *why)
{
  struct top *t = s->top;

  for (;;) {
    int key;

    if (!draw(s, why))
      return TOP_FAILED;
    key = getch();               /* a moment at most */
    if (oct_interrupted() || (key != ERR && !take_key(s, key)))
      return TOP_QUIT;
    if (!oct_watched_lives(&t->of))
      return TOP_PROCESS_ENDED;
    if (!t->view.paused && (double)(oct_now_ns() - t->now.at_ns) >= t->interval * 1e9 && !oct_top_look(t, why))
      return oct_watched_lives(&t->of) ? TOP_FAILED : TOP_PROCESS_ENDED;
  }
}

/* NO_COLOR: https://no-color.org: set, and not empty. */
static bool want_colour(void)
{
  const char *no = getenv("NO_COLOR");

  return (!no || !*no) && has_colors() && start_color() == OK && use_default_colors() == OK && init_pair(1, COLOR_RED, -1) == OK;
}

enum top_end oct_top_screen(struct top *t, struct fault *why)
{
  struct screen s = {.top = t};
  SCREEN *terminal = newterm(NULL, stdout, stdin);
  enum top_end end;

  if (!terminal) {
    oct_fault_write(why, "the terminal cannot be drawn on: TERM is '%.64s'", is_dumb() ? "dumb" : getenv("TERM"));
    return TOP_FAILED;
  }
  s.colour = want_colour();
  cbreak();
  noecho();
  keypad(stdscr, TRUE);
  curs_set(0);
  timeout(NAP_MS);
  end = watch(&s, why);
  endwin();
  delscreen(terminal);
  return end;
}

#endif
