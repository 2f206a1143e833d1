package network

import (
	"os"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/thread"
)

// TestMissing checks that this machine has all modules, and that exactly a rejected feature is reported.
func TestMissing(t *testing.T) {
	missing, err := Missing()
	require.NoError(t, err)
	require.Empty(t, missing)

	was := parts
	defer func() { parts = was }()
	parts = append(parts[:1:1], parts[0], parts[1])
	// The default modulus of 0 is invalid.
	parts[1].module, parts[1].exprs = "nft_none", []expr.Any{&expr.Numgen{Register: reg1, Type: unix.NFT_NG_RANDOM}}
	missing, err = Missing()
	require.NoError(t, err)
	require.Len(t, missing, 1)
	require.Equal(t, "nft_none", missing[0].Module)
	require.Error(t, missing[0].Err)

	require.NoError(t, thread.Run(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := conn.ListTables()
		for _, table := range tables {
			require.NotContains(t, table.Name, "try")
		}
		return err
	}))
	require.NoFileExists(t, "/sys/class/net/try")
	_, err = os.Stat("/sys/class/net/tried")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func BenchmarkMissing(b *testing.B) {
	for b.Loop() {
		missing, err := Missing()
		require.NoError(b, err)
		require.Empty(b, missing)
	}
}
