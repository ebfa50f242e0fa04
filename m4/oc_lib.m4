# SPDX-License-Identifier: MIT

# OC_SEARCH_LIB(NAME, FUNCTION, LIBRARY): NAME_LIBS is what FUNCTION needs beyond libc, often nothing.
AC_DEFUN([OC_SEARCH_LIB], [
  oc_save_LIBS=$LIBS
  LIBS=
  AC_SEARCH_LIBS([$2], [$3], [], [AC_MSG_ERROR([no library has $2])])
  $1_LIBS=$LIBS
  LIBS=$oc_save_LIBS
  AC_SUBST([$1_LIBS])
])
