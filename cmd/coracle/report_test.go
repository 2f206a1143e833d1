package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReport: an error that cannot be written to standard error is in the kernel's log.
func TestReport(t *testing.T) {
	kernel := filepath.Join(t.TempDir(), "kmsg")
	require.NoError(t, os.WriteFile(kernel, nil, 0o600))
	var out bytes.Buffer
	report(errors.New("the disk"), &out, kernel)
	require.Equal(t, "Error: the disk\n", out.String())
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	report(errors.New("the disk"), full, kernel)
	data, err := os.ReadFile(kernel)
	require.NoError(t, err)
	require.Equal(t, "<3>coracle: the disk\n", string(data))
}
