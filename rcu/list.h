/* SPDX-License-Identifier: MIT */
/*
 * link: a node, or the head, of a circular doubly linked list. Owned by the struct that embeds it; the list's
 *       lock is the embedding module's affair. A zeroed link is on no list.
 */
#ifndef OCI_RCU_LIST_H
#define OCI_RCU_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct link {
  struct link *prev, *next;
};

#define CONTAINER(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))

static inline void link_init(struct link *head) {
  head->prev = head->next = head;
}

static inline bool link_empty(const struct link *head) {
  return head->next == head;
}

static inline bool link_on(const struct link *l) {
  return l->next != NULL;
}

static inline void link_add_tail(struct link *head, struct link *l) {
  l->prev = head->prev;
  l->next = head;
  head->prev->next = l;
  head->prev = l;
}

static inline void link_add_head(struct link *head, struct link *l) {
  link_add_tail(head->next, l);
}

static inline void link_remove(struct link *l) {
  if (!link_on(l)) return;
  l->prev->next = l->next;
  l->next->prev = l->prev;
  l->prev = l->next = NULL;
}

static inline void link_move_tail(struct link *head, struct link *l) {
  link_remove(l);
  link_add_tail(head, l);
}

/* What stands in `from` goes to the end of `to`. */
static inline void link_splice(struct link *to, struct link *from) {
  if (link_empty(from)) return;
  from->next->prev = to->prev;
  to->prev->next = from->next;
  from->prev->next = to;
  to->prev = from->prev;
  link_init(from);
}

#define LINK_EACH(l, head) for (struct link *l = (head)->next, *l##_next = l->next; l != (head); l = l##_next, l##_next = l->next)

#endif
