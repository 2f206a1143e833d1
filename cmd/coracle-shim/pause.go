package main

/*
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void must(long result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "pause: %s: %s\n", what, strerror(errno));
		_exit(1);
	}
}

// join enters the pod's user namespace (file descriptor 3) and continues in a child, the first process of a new PID
// namespace in it. The shim cannot do this itself: the kernel lets no process with several threads change its user
// namespace. join reports the child's process ID to the shim.
static void join(void)
{
	must(setns(3, CLONE_NEWUSER), "enter the pod's user namespace");
	must(close(3), "close the user namespace");
	must(close(4), "close the program");
	must(setresgid(0, 0, 0), "setresgid");
	must(setresuid(0, 0, 0), "setresuid");
	must(unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS), "make namespaces");
	int gate[2]; // closed once the process ID has been written
	must(pipe(gate), "make a pipe");
	long pid = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
	must(pid, "clone");
	if (pid != 0) {
		must(dprintf(1, "%ld\n", pid), "say the process ID");
		_exit(0);
	}
	char byte;
	must(close(gate[1]), "close the pipe");
	must(read(gate[0], &byte, 1), "wait");
	must(close(gate[0]), "close the pipe");
}

// pause_main is the first process of the PID namespace that a pod's containers share. The shim starts it in new
// namespaces. It drops everything that containers could reach through /proc/1: its root is empty and read-only, it
// has no capabilities, and its user owns nothing. Then it writes a byte to its output and waits for EOF on its
// input. The kernel reaps orphans, since SIGCHLD is ignored, and drops other signals from inside the namespace,
// since this process has no handlers.
__attribute__((constructor)) static void pause_main(int argc, char **argv)
{
	if (argc < 2 || strcmp(argv[1], "pause") != 0)
		return;
	if (argc > 2 && strcmp(argv[2], "join") == 0)
		join();
	must(mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
	must(mount("empty", "/proc", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,nr_inodes=2,mode=0555"),
		"mount the empty root");
	must(chdir("/proc"), "enter the empty root");
	must(syscall(SYS_pivot_root, ".", "."), "pivot_root");
	must(umount2(".", MNT_DETACH), "leave the machine's root");
	must(chdir("/"), "enter the root");
	must(mount("", "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL),
		"make the root read-only");
	for (int i = 1; i < NSIG; i++)
		signal(i, SIG_DFL);
	must(signal(SIGCHLD, SIG_IGN) == SIG_ERR ? -1 : 0, "ignore SIGCHLD");
	for (int cap = 0; cap < 64 && prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
		must(prctl(PR_CAPBSET_DROP, cap, 0, 0, 0), "drop a capability");
	must(setgroups(0, NULL), "setgroups");
	must(setresgid(65535, 65535, 65535), "setresgid");
	must(setresuid(65535, 65535, 65535), "setresuid");
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
	must(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "not dumpable");
	must(write(1, "", 1), "say that it is ready");
	must(close(1), "close the output");
	must(close(2), "close the log");
	// Strict mode allows only read, write, exit and sigreturn. Some kernels lack it; ignore the error.
	prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
	char byte;
	while (read(0, &byte, 1) > 0)
		;
	syscall(SYS_exit, 0);
}
*/
import "C"
