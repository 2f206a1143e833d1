package mount

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const inOldKernel = "CORACLE_TEST_OLD_KERNEL"

// TestOverlayBefore65 creates overlays as before Linux 6.5, where fsconfig accepts any key but fails to create the
// mount. A seccomp filter emulates that in a child process, since a process cannot remove its filter.
func TestOverlayBefore65(t *testing.T) {
	if os.Getenv(inOldKernel) == "" {
		child := exec.Command(os.Args[0], "-test.run=^TestOverlayBefore65$", "-test.v")
		child.Env = append(os.Environ(), inOldKernel+"=1")
		out, err := child.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: TestOverlayBefore65")
		return
	}
	refuseCreate(t)
	dirs := layers(t, 3)
	fd, err := Overlay{Lower: dirs}.New()
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"file-0", "file-1", "file-2"}, names(t, fd))
	require.NoError(t, unix.Close(fd))
	top := t.TempDir()
	o := Overlay{Lower: dirs, Upper: filepath.Join(top, "upper"), Work: filepath.Join(top, "work")}
	require.NoError(t, os.Mkdir(o.Upper, 0o755))
	require.NoError(t, os.Mkdir(o.Work, 0o755))
	fd, err = o.New()
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	_, err = Overlay{Lower: []string{dirs[0], filepath.Join(top, "none")}}.New()
	require.ErrorIs(t, err, os.ErrNotExist)
}

// refuseCreate makes fsconfig's command to create a mount fail with EINVAL, in all threads of this process.
func refuseCreate(t *testing.T) {
	const (
		number = 0       // offset of the system call's number in struct seccomp_data
		second = 16 + 8  // offset of the lower half of its second argument
		loadW  = 0x20    // BPF_LD | BPF_W | BPF_ABS
		equals = 0x15    // BPF_JMP | BPF_JEQ | BPF_K
		answer = 0x06    // BPF_RET | BPF_K
		refuse = 0x50000 // SECCOMP_RET_ERRNO
		allow  = 0x7fff0000
	)
	filter := []unix.SockFilter{
		{Code: loadW, K: number},
		{Code: equals, K: unix.SYS_FSCONFIG, Jf: 3},
		{Code: loadW, K: second},
		{Code: equals, K: unix.FSCONFIG_CMD_CREATE, Jf: 1},
		{Code: answer, K: refuse | uint32(unix.EINVAL)},
		{Code: answer, K: allow},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	require.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	require.Zero(t, errno)
}
