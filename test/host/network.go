package host

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

func inNetwork(path string, f func() error) error {
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread is not reused
		ns, err := os.Open(path)
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = f()
		}
		ended <- err
	}()
	return <-ended
}
