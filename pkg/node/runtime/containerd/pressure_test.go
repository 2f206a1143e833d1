package containerd

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

func TestPressure(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("cpu.pressure", "some avg10=1.25 avg60=0.50 avg300=0.10 total=1500\n") // Linux 5.10
	const none = "avg60=0.00 avg300=0.00 total="
	write("memory.pressure", "some avg10=0.00 "+none+"7\nfull avg10=90.00 "+none+"5\n")
	require.Nil(t, pressure(dir), "the kernel does not measure io")
	write("io.pressure", "some avg10=0.00 "+none+"0\nfull avg10=0.00 "+none+"0\n")
	require.Equal(t, &runtime.Pressure{
		CPU: runtime.Stalls{Some: runtime.Stall{Avg10: 1.25, Avg60: 0.5, Avg300: 0.1, Total: 1500 * time.Microsecond}},
		Memory: runtime.Stalls{
			Some: runtime.Stall{Total: 7 * time.Microsecond},
			Full: runtime.Stall{Avg10: 90, Total: 5 * time.Microsecond},
		},
	}, pressure(dir))
}
