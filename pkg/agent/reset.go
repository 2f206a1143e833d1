package agent

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Reset unmounts everything below the given directories: what pods' volumes left there. No agent may run with them.
func Reset(dirs ...string) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		// proc_pid_mountinfo(5): the fifth field is the mount point, with spaces as \040.
		point := strings.ReplaceAll(strings.Fields(line)[4], `\040`, " ")
		if slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(point, dir+"/") }) {
			points = append(points, point)
		}
	}
	var errs []error
	for _, point := range slices.Backward(points) {
		// Detaching the copy of a shared mount would detach the mounts below the original, too.
		_ = unix.Mount("", point, "", unix.MS_PRIVATE, "")
		if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, &os.PathError{Op: "unmount", Path: point, Err: err})
		}
	}
	return errors.Join(errs...)
}
