/* SPDX-License-Identifier: MIT */
/* The pool's lock (rcu/lock.h): one at a time, no sleeper forgotten. A lost wake is Check's timeout. */
#include "config.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rcu/lock.h"
#include "tests/fixture.h"

struct counted {
  struct lock lock;
  uint64_t count;      /* under lock, and by plain steps: two holders at once lose some */
  unsigned turns;
  bool dawdles;        /* a holder sleeps now and then, so that the others must */
};

static void count_up(void *arg, unsigned thread) {
  struct counted *c = arg;
  for (unsigned i = 0; i < c->turns; i++) {
    lock_take(&c->lock);
    uint64_t seen = c->count;
    if (c->dawdles && (i + thread) % 50 == 0) fx_msleep(1);
    c->count = seen + 1;
    lock_leave(&c->lock);
  }
}

static void all_counted(unsigned threads, unsigned turns, bool dawdles) {
  struct counted c = {.turns = turns, .dawdles = dawdles};
  fx_threads(threads, count_up, &c);
  ck_assert_uint_eq(c.count, (uint64_t)threads * turns);
  ck_assert_uint_eq(c.lock.state, LOCK_OPEN);
  if (dawdles) ck_assert_uint_eq(c.lock.careful, 1);
}

START_TEST(alone_it_stays_careless) {
  struct lock l = {0};
  for (int i = 0; i < 1000; i++) {
    lock_take(&l);
    ck_assert_uint_eq(l.state, LOCK_TAKEN);
    lock_leave(&l);
    ck_assert_uint_eq(l.state, LOCK_OPEN);
  }
  ck_assert_uint_eq(l.careful, 0);
}
END_TEST

START_TEST(one_at_a_time) {
  all_counted(2, fx_scale(200000), false);
  all_counted(8, fx_scale(50000), false);
}
END_TEST

START_TEST(those_who_slept_come_in) {
  all_counted(2, 500, true);
  all_counted(8, 200, true);
}
END_TEST

struct held {
  struct lock lock;
  uint32_t left;       /* threads that slept for it and came out */
  bool in;             /* under lock: the holder is in */
};

static void want_it(void *arg, unsigned thread) {
  struct held *h = arg;
  if (thread == 0) {   /* takes it without a thought of sleepers, and leaves it when all of them sleep */
    lock_take(&h->lock);
    __atomic_store_n(&h->in, true, __ATOMIC_RELEASE);
    fx_until(__atomic_load_n(&h->lock.state, __ATOMIC_RELAXED) == LOCK_SLEPT_FOR);
    fx_msleep(20);
    ck_assert_uint_eq(__atomic_load_n(&h->left, __ATOMIC_RELAXED), 0);
    lock_leave(&h->lock);
    return;
  }
  fx_until(__atomic_load_n(&h->in, __ATOMIC_ACQUIRE));
  lock_take(&h->lock);
  __atomic_add_fetch(&h->left, 1, __ATOMIC_RELAXED);
  lock_leave(&h->lock);
}

/* One wake a leave: each that comes in must wake the next. */
START_TEST(each_sleeper_wakes_the_next) {
  struct held h = {0};
  fx_threads(9, want_it, &h);
  ck_assert_uint_eq(h.left, 8);
  ck_assert_uint_eq(h.lock.state, LOCK_OPEN);
}
END_TEST

struct change {
  struct lock lock;
  uint32_t word;       /* under lock */
  uint32_t waiting;    /* under lock: threads that sleep for it, or will in a moment */
};

static void change_or_wait(void *arg, unsigned thread) {
  struct change *c = arg;
  if (thread == 0) {
    fx_until(__atomic_load_n(&c->waiting, __ATOMIC_RELAXED) == 4);
    fx_msleep(5);
  }
  lock_take(&c->lock);
  if (thread == 0) {
    __atomic_store_n(&c->word, 1, __ATOMIC_RELAXED);
    oci_lock_changed(&c->word);
  } else {
    __atomic_store_n(&c->waiting, c->waiting + 1, __ATOMIC_RELAXED);
  }
  while (!c->word) oci_lock_sleep(&c->lock, &c->word, 0);
  ck_assert_uint_ne(__atomic_load_n(&c->lock.state, __ATOMIC_RELAXED), LOCK_OPEN);   /* it is ours again */
  lock_leave(&c->lock);
}

START_TEST(a_change_wakes_all_that_sleep_for_it) {
  for (int i = 0; i < 20; i++) {
    struct change c = {0};
    fx_threads(5, change_or_wait, &c);
  }
}
END_TEST

START_TEST(a_change_before_the_sleep_is_not_missed) {
  struct change c = {.word = 1};
  lock_take(&c.lock);
  oci_lock_sleep(&c.lock, &c.word, 0);
  lock_leave(&c.lock);
}
END_TEST

/* From now on this process has a kernel without the barrier: without any membarrier, or one that registers for it only. */
static bool take_the_barrier_away(bool registers) {
  struct sock_filter code[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 3),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, registers ? MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED : ~0u, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return false;
  return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0;
}

static void take_and_leave(void *arg, unsigned thread) {
  struct lock *l = arg;
  if (thread == 0) {   /* what is left unseen where no barrier was passed: the lock is free, and nobody is woken */
    fx_until(__atomic_load_n(&l->state, __ATOMIC_RELAXED) == LOCK_SLEPT_FOR);
    fx_msleep(20);
    __atomic_store_n(&l->state, LOCK_OPEN, __ATOMIC_RELEASE);
    return;
  }
  lock_take(l);
  lock_leave(l);
}

START_TEST(without_a_barrier_a_missed_wake_is_made_good) {
  struct lock l = {.state = LOCK_TAKEN};
  if (!take_the_barrier_away(_i)) {
    fx_skip("this kernel has no filter of system calls");
    return;
  }
  fx_threads(4, take_and_leave, &l);
  ck_assert_uint_eq(l.state, LOCK_OPEN);
}
END_TEST

START_TEST(without_a_barrier_those_who_slept_come_in) {
  if (!take_the_barrier_away(_i)) {
    fx_skip("this kernel has no filter of system calls");
    return;
  }
  all_counted(2, 500, true);
  all_counted(8, 200, true);
  struct held h = {0};
  fx_threads(9, want_it, &h);
  ck_assert_uint_eq(h.left, 8);
}
END_TEST

int main(void) {
  Suite *s = suite_create("lock");
  TCase *c = tcase_create("lock");
  tcase_set_timeout(c, 60);
  tcase_add_test(c, alone_it_stays_careless);
  tcase_add_test(c, one_at_a_time);
  tcase_add_test(c, those_who_slept_come_in);
  tcase_add_test(c, each_sleeper_wakes_the_next);
  tcase_add_loop_test(c, without_a_barrier_those_who_slept_come_in, 0, 2);
  tcase_add_loop_test(c, without_a_barrier_a_missed_wake_is_made_good, 0, 2);
  tcase_add_test(c, a_change_wakes_all_that_sleep_for_it);
  tcase_add_test(c, a_change_before_the_sleep_is_not_missed);
  suite_add_tcase(s, c);
  return fx_run(s);
}
