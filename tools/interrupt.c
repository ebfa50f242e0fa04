/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/interrupt.h"

#include <signal.h>
#include <stddef.h>

static int caught;

static void on_signal(int number)
{
  /* Lock-free, so it is allowed here; threads see it without more: it orders nothing else. */
  __atomic_store_n(&caught, number, __ATOMIC_RELAXED);
}

void oct_interrupt_catch(void)
{
  struct sigaction act = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};

  sigemptyset(&act.sa_mask);
  sigaction(SIGINT, &act, NULL);
  sigaction(SIGTERM, &act, NULL);
}

bool oct_interrupted(void)
{
  return __atomic_load_n(&caught, __ATOMIC_RELAXED) != 0;
}

int oct_interrupt_exit_code(void)
{
  int number = __atomic_load_n(&caught, __ATOMIC_RELAXED);

  return number ? 128 + number : 0;
}
