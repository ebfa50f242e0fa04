/* SPDX-License-Identifier: MIT */
/*
 * Guards (G1, G2, G27): what a guard keeps waiting, and that no order of enters, leaves and thread ends makes a grace
 * period hang. A hang is Check's timeout: a grace period takes milliseconds.
 */
#include "config.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "rcu/guard.h"
#include <urcu/urcu-bp.h>
#include "tests/fixture.h"

/* Until the flag is set, by a thread that may wait for this one's guard. */
static void wait_for(const uint32_t *flag) {
  fx_until(__atomic_load_n(flag, __ATOMIC_ACQUIRE));
}

static void set(uint32_t *flag) {
  __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
}

START_TEST(guards_nest) {
  ck_assert(!oci_guarded());
  for (int i = 0; i < 1000; i++) {
    oci_guard_enter();
    ck_assert(oci_guarded());
    ck_assert_uint_eq(oci_self.guards, (unsigned)i + 1);
  }
  for (int i = 0; i < 1000; i++) {
    ck_assert(oci_guarded());
    ck_assert(oci_guard_leave());
  }
  ck_assert(!oci_guarded());
  oci_guard_sync();
}
END_TEST

START_TEST(g33_a_leave_without_an_enter_is_refused) {
  ck_assert(!oci_guard_leave());   /* on a thread that never entered one */
  oci_guard_enter();
  ck_assert(oci_guard_leave());
  for (int i = 0; i < 3; i++) ck_assert(!oci_guard_leave());
  ck_assert(!oci_guarded());
  oci_guard_sync();
  oci_guard_enter();
  ck_assert(oci_guarded());
  ck_assert(oci_guard_leave());
  oci_guard_sync();
}
END_TEST

static unsigned logged;

static void count_line(void *arg, int level, const char *line) {
  (void)arg;
  ck_assert_int_eq(level, 1);
  ck_assert_msg(strstr(line, "oc_guard_leave") != NULL, "%s", line);
  logged++;
}

START_TEST(a_leave_without_an_enter_is_logged) {
  oc_set_log(count_line, NULL);
  oc_guard_leave();
  oc_model_leave(NULL);
  ck_assert_uint_eq(logged, 2);
  oc_guard_enter();
  oc_guard_leave();
  ck_assert_uint_eq(logged, 2);
  oc_set_log(NULL, NULL);
}
END_TEST

/* ---- what a grace period waits for ---- */

struct reader {
  uint32_t inside, leave_inner, left_inner, leave, synced;   /* atomic */
};

static void *nested_reader(void *arg) {
  struct reader *r = arg;
  oci_guard_enter();
  oci_guard_enter();
  set(&r->inside);
  wait_for(&r->leave_inner);
  (void)oci_guard_leave();
  set(&r->left_inner);
  wait_for(&r->leave);
  (void)oci_guard_leave();
  return NULL;
}

static void *sync_once(void *arg) {
  struct reader *r = arg;
  oci_guard_sync();
  set(&r->synced);
  return NULL;
}

START_TEST(g2_a_grace_period_waits_for_the_outermost_leave) {
  struct reader r = {0};
  pthread_t reader, syncer;
  pthread_create(&reader, NULL, nested_reader, &r);
  wait_for(&r.inside);
  pthread_create(&syncer, NULL, sync_once, &r);
  fx_msleep(30);
  ck_assert_uint_eq(__atomic_load_n(&r.synced, __ATOMIC_ACQUIRE), 0);
  set(&r.leave_inner);
  wait_for(&r.left_inner);
  fx_msleep(30);
  ck_assert_uint_eq(__atomic_load_n(&r.synced, __ATOMIC_ACQUIRE), 0);
  set(&r.leave);
  wait_for(&r.synced);
  pthread_join(reader, NULL);
  pthread_join(syncer, NULL);
}
END_TEST

static void *late_reader(void *arg) {
  struct reader *r = arg;
  oci_guard_enter();
  set(&r->left_inner);
  wait_for(&r->leave);
  (void)oci_guard_leave();
  return NULL;
}

/* One that began after the grace period did is not waited for, or teardown would starve. */
START_TEST(a_grace_period_does_not_wait_for_later_guards) {
  struct reader first = {0}, second = {0};
  pthread_t a, b, syncer;
  set(&first.leave_inner);
  pthread_create(&a, NULL, nested_reader, &first);
  wait_for(&first.left_inner);
  pthread_create(&syncer, NULL, sync_once, &first);
  fx_msleep(30);   /* the grace period has begun, and waits for the first */
  pthread_create(&b, NULL, late_reader, &second);
  wait_for(&second.left_inner);
  set(&first.leave);
  wait_for(&first.synced);
  set(&second.leave);
  pthread_join(a, NULL);
  pthread_join(b, NULL);
  pthread_join(syncer, NULL);
}
END_TEST

/* ---- the host's own read sections share the domain ---- */

START_TEST(g27_the_hosts_own_section_counts_as_a_guard) {
  urcu_bp_read_lock();
  ck_assert(oci_guarded());
  ck_assert(!oci_guard_leave());   /* not ours to end */
  ck_assert(oci_guarded());
  oci_guard_enter();
  ck_assert(oci_guard_leave());
  ck_assert(oci_guarded());
  urcu_bp_read_unlock();
  ck_assert(!oci_guarded());
  oci_guard_sync();
}
END_TEST

/* ---- threads that begin and end ---- */

static void first_guard(void *arg, unsigned i) {
  (void)i;
  oci_guard_enter();
  __atomic_add_fetch((uint32_t *)arg, 1, __ATOMIC_RELAXED);
  (void)oci_guard_leave();
}

START_TEST(g1_any_thread_may_enter_without_registering) {
  uint32_t n = 0;
  for (int round = 0; round < 10; round++) {
    fx_threads(40, first_guard, &n);
    oci_guard_sync();
  }
  ck_assert_uint_eq(n, 400);
}
END_TEST

static void attach_and_enter(void *arg, unsigned i) {
  (void)i;
  uint32_t *bad = arg;
  if (oc_thread_attach() != OC_OK || oci_guarded() || oc_thread_attach() != OC_OK) __atomic_add_fetch(bad, 1, __ATOMIC_RELAXED);
  oci_guard_enter();
  if (oc_thread_attach() != OC_OK || !oci_guarded()) __atomic_add_fetch(bad, 1, __ATOMIC_RELAXED);   /* changes nothing inside */
  if (!oci_guard_leave() || oci_guarded()) __atomic_add_fetch(bad, 1, __ATOMIC_RELAXED);
}

START_TEST(attaching_changes_no_guard) {
  uint32_t bad = 0;
  fx_threads(8, attach_and_enter, &bad);
  ck_assert_uint_eq(bad, 0);
  oci_guard_sync();
}
END_TEST

static void exit_inside(void *arg, unsigned i) {
  (void)arg;
  for (unsigned n = 0; n <= i % 3; n++) oci_guard_enter();
}

START_TEST(a_thread_that_ends_in_a_guard_is_not_waited_for) {
  for (int round = 0; round < 5; round++) {
    fx_threads(6, exit_inside, NULL);
    oci_guard_sync();
  }
}
END_TEST

/* ---- guards in destructors of thread-specific data, after liburcu's hook has ended the thread's reader ---- */

enum late { LATE_PAIR, LATE_LEAVE, LATE_PAIR_THEN_LEAVE, LATE_ENTER, LATE_PUBLIC, LATE_NESTED, LATE_CASES };

struct exiting {
  enum late what;
  unsigned entered;          /* guards that the thread is still in when it ends */
  unsigned rounds;           /* destructor calls left */
  uint32_t bad;
};

static pthread_key_t late_key;
static pthread_once_t late_once = PTHREAD_ONCE_INIT;

static void expect(struct exiting *e, bool what) {
  if (!what) e->bad++;
}

/* As engines call it. The leaves of the guards that ended with the reader are in order; one more is told of. */
static void late_public(struct exiting *e) {
  unsigned before = logged;
  for (; e->entered; e->entered--) oc_guard_leave();
  expect(e, logged == before);
  oc_guard_leave();
  expect(e, logged == before + 1);
  oc_guard_enter();
  expect(e, oci_guarded());
  oc_guard_leave();
  expect(e, !oci_guarded() && logged == before + 1);
}

static void late_calls(struct exiting *e) {
  switch (e->what) {
    case LATE_PAIR:
      oci_guard_enter();
      expect(e, oci_guarded());
      expect(e, oci_guard_leave());
      expect(e, !oci_guarded());
      return;
    case LATE_LEAVE:
      (void)oci_guard_leave();
      (void)oci_guard_leave();
      expect(e, !oci_guarded());
      return;
    case LATE_PAIR_THEN_LEAVE:
      oci_guard_enter();
      expect(e, oci_guard_leave());
      expect(e, !oci_guarded());
      (void)oci_guard_leave();   /* of the guard that ended with the reader */
      expect(e, !oci_guarded());
      oci_guard_enter();
      expect(e, oci_guarded());
      expect(e, oci_guard_leave());
      expect(e, !oci_guarded());
      return;
    case LATE_ENTER:
      oci_guard_enter();
      return;
    case LATE_PUBLIC:
      late_public(e);
      return;
    default:
      oci_guard_enter();
      oci_guard_enter();
      expect(e, oci_guard_leave());
      expect(e, oci_guarded());
      expect(e, oci_guard_leave());
      expect(e, !oci_guarded());
  }
}

static void late(void *arg) {
  struct exiting *e = arg;
  late_calls(e);
  /* glibc calls destructors again, up to four times, while values are set */
  if (--e->rounds) pthread_setspecific(late_key, e);
}

static void make_late_key(void) {
  pthread_key_create(&late_key, late);
}

static void *end_with_late_calls(void *arg) {
  struct exiting *e = arg;
  /* liburcu's key is older than ours, so its destructor runs before ours in each round */
  oci_guard_enter();
  (void)oci_guard_leave();
  pthread_once(&late_once, make_late_key);
  pthread_setspecific(late_key, e);
  for (unsigned i = 0; i < e->entered; i++) oci_guard_enter();
  return NULL;
}

START_TEST(guards_work_after_liburcus_exit_hook) {
  oci_guard_attach();
  oc_set_log(count_line, NULL);
  for (unsigned entered = 0; entered < 3; entered++) {
    for (unsigned rounds = 1; rounds <= 3; rounds++) {
      struct exiting e = {.what = (enum late)_i, .entered = entered, .rounds = rounds};
      pthread_t t;
      pthread_create(&t, NULL, end_with_late_calls, &e);
      pthread_join(t, NULL);
      ck_assert_msg(e.bad == 0, "%u wrong answers, %u guards held at the end, %u rounds", e.bad, entered, rounds);
      oci_guard_sync();
    }
  }
  oc_set_log(NULL, NULL);
}
END_TEST

/* ---- all at once ---- */

struct box {
  uint64_t a, b;
};

struct shared {
  struct box *current;    /* atomic */
  uint32_t stop, bad;     /* atomic */
};

static void read_or_replace(void *arg, unsigned i) {
  struct shared *s = arg;
  if (i == 0) {
    for (uint64_t n = 1; n <= fx_scale(100); n++) {
      struct box *fresh = malloc(sizeof *fresh), *old = s->current;
      *fresh = (struct box){n, ~n};
      __atomic_store_n(&s->current, fresh, __ATOMIC_RELEASE);
      oci_guard_sync();
      old->a = old->b = 0;   /* a reader that still has it would see this */
      free(old);
    }
    __atomic_store_n(&s->stop, 1, __ATOMIC_RELAXED);
    return;
  }
  while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
    oci_guard_enter();
    const struct box *b = __atomic_load_n(&s->current, __ATOMIC_ACQUIRE);
    for (int n = 0; n < 50; n++)
      if (b->a != ~b->b) __atomic_add_fetch(&s->bad, 1, __ATOMIC_RELAXED);
    (void)oci_guard_leave();
  }
}

START_TEST(g2_nothing_is_freed_under_a_reader) {
  struct shared s = {.current = malloc(sizeof(struct box))};
  *s.current = (struct box){0, ~UINT64_C(0)};
  fx_threads(4, read_or_replace, &s);
  ck_assert_uint_eq(s.bad, 0);
  free(s.current);
}
END_TEST

int main(void) {
  Suite *s = suite_create("guard");
  TCase *c = tcase_create("guard");
  tcase_set_timeout(c, 20);
  tcase_add_test(c, guards_nest);
  tcase_add_test(c, g33_a_leave_without_an_enter_is_refused);
  tcase_add_test(c, a_leave_without_an_enter_is_logged);
  tcase_add_test(c, g2_a_grace_period_waits_for_the_outermost_leave);
  tcase_add_test(c, a_grace_period_does_not_wait_for_later_guards);
  tcase_add_test(c, g27_the_hosts_own_section_counts_as_a_guard);
  tcase_add_test(c, g1_any_thread_may_enter_without_registering);
  tcase_add_test(c, attaching_changes_no_guard);
  tcase_add_test(c, a_thread_that_ends_in_a_guard_is_not_waited_for);
  tcase_add_loop_test(c, guards_work_after_liburcus_exit_hook, 0, LATE_CASES);
  tcase_add_test(c, g2_nothing_is_freed_under_a_reader);
  suite_add_tcase(s, c);
  return fx_run(s);
}
