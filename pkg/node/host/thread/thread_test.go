package thread

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRun checks that changes of f to its thread's namespaces affect no other thread, and that Run returns its
// error.
func TestRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("it changes the host name of a namespace: run it as root")
	}
	before, err := os.Hostname()
	require.NoError(t, err)
	want := errors.New("wanted")
	for range 20 { // some start on the main thread
		require.ErrorIs(t, Run(func() error {
			if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
				return err
			}
			return errors.Join(unix.Sethostname([]byte("changed")), want)
		}), want)
		now, err := os.Hostname()
		require.NoError(t, err)
		require.Equal(t, before, now)
	}
}
