package main

/*
#define _GNU_SOURCE
#include <errno.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(int result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", what, strerror(errno));
		_exit(1);
	}
}

static void answer(void)
{
	check(write(1, "", 1), "answer");
}

// probe mounts the file systems that every container has. The kernel refuses these mounts in a user namespace if
// the machine is itself a container with parts of /proc or /sys masked.
static void probe(void)
{
	check(unshare(CLONE_NEWNS | CLONE_NEWPID), "make a mount and a PID namespace");
	pid_t child = fork();
	check(child, "fork");
	if (child == 0) {
		check(mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
		check(mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL), "mount sysfs");
		check(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount proc");
		check(mount("tmpfs", "/proc", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount a tmpfs");
		_exit(0);
	}
	int status = 0;
	check(waitpid(child, &status, 0), "wait");
	if (status != 0)
		_exit(1);
}

// own creates the user namespace with the pod's own root as owner. The kernel also charges per-user limits, such as
// inotify instances, to the namespace's owner: if that were the machine's root, all pods would share one limit with
// the machine. The real UID stays, because the kernel counts processes by it, and so do the capabilities, because
// some distributions require them for creating user namespaces.
static void own(uid_t root)
{
	check(prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0), "keep capabilities");
	check(setresgid(-1, root, -1), "become the owner's group");
	check(setresuid(-1, root, -1), "become the owner");
	check(unshare(CLONE_NEWUSER), "make a user namespace");
}

// namespaces_main is the process in which the namespaces of a pod with its own user namespace begin. The agent
// starts it with the host ID of the namespace's root, maps its IDs from outside, and opens its namespaces. It exits
// on EOF of its input.
__attribute__((constructor)) static void namespaces_main(int argc, char **argv)
{
	if (argc < 3 || strcmp(argv[1], "namespaces") != 0)
		return;
	char byte;
	own(strtoul(argv[2], NULL, 10));
	check(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "let the agent map IDs");
	answer();
	if (read(0, &byte, 1) != 1)
		_exit(1);
	check(setresgid(0, 0, 0), "setresgid");
	check(setresuid(0, 0, 0), "setresuid");
	check(unshare(CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS), "make a network, an IPC and a UTS namespace");
	if (argc > 3 && strcmp(argv[3], "probe") == 0)
		probe();
	check(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "let the agent take the namespaces");
	answer();
	while (read(0, &byte, 1) > 0)
		;
	_exit(0);
}
*/
import "C"
