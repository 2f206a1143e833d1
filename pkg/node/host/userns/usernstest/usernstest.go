// Package usernstest creates user namespaces for tests without coracle-shim.
//
// Its invariant: a child executes nothing of the test's program.
package usernstest

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/userns"
)

// Start starts a child in a user namespace with these IDs, and in network, IPC and UTS namespaces owned by it. Call
// end to stop it. Unlike coracle-shim it costs a copy of this process's page tables.
func Start(r userns.Range) (pid int, end func(), err error) {
	ids := []syscall.SysProcIDMap{{HostID: int(r.First), Size: int(r.Count)}}
	p, err := os.StartProcess("/proc/self/exe", []string{"stopped"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		UidMappings: ids, GidMappings: ids,
		Ptrace: true, // stops the child before it executes the program
	}})
	if err != nil {
		return 0, nil, err
	}
	return p.Pid, func() { _ = p.Kill(); _, _ = p.Wait() }, nil
}
