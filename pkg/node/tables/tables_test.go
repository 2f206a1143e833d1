package tables

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/netns"
)

func TestMain(m *testing.M) { netns.Main(m) }

func nft(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestRemovedTablesAreWrittenAgain: after a flush by another program, each table is restored in order, and again if
// that fails. Transactions of this process, and of others about other tables, cause nothing.
func TestRemovedTablesAreWrittenAgain(t *testing.T) {
	conn, err := nftables.New()
	require.NoError(t, err)
	write := func(name string) error {
		conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: name})
		return conn.Flush()
	}
	restored, failed := make(chan string, 100), false
	table := func(name string) Table {
		return Table{Name: name, Restore: func(context.Context) error {
			defer func() { restored <- name }() // after the write: the receiver lists the tables
			if name == "a" && !failed {
				failed = true
				return errors.New("not now")
			}
			return write(name)
		}}
	}
	require.NoError(t, write("a"))
	require.NoError(t, write("b"))
	none := Table{ // of an agent without network policies
		Name: "none", Written: func() bool { return false }, Restore: func(context.Context) error { return nil },
	}
	var log bytes.Buffer
	removed, changes := make(chan string, 100), 0
	w := &Watcher{Tables: []Table{table("a"), none, table("b")}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Removed: func(table, program string) { removed <- program + " removed " + table },
		Changed: func() error { changes++; return nil }}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	<-w.Ready()
	next := func() string {
		select {
		case name := <-restored:
			return name
		case <-time.After(time.Minute):
			return "nothing"
		}
	}

	require.NoError(t, write("ours"))
	nft(t, "add", "table", "ip", "theirs")
	nft(t, "flush", "ruleset")
	require.Equal(t, []string{"a", "b", "a"}, []string{next(), next(), next()})
	found, err := conn.ListTablesOfFamily(nftables.TableFamilyIPv4)
	require.NoError(t, err)
	require.Len(t, found, 2)

	nft(t, "delete", "table", "ip", "b")
	require.Equal(t, "b", next())
	cancel()
	require.NoError(t, <-ended)
	require.Empty(t, restored)
	require.Contains(t, log.String(), "another program removed an nftables table")
	require.NotContains(t, log.String(), "table=none")
	close(removed)
	var reported []string
	for r := range removed {
		reported = append(reported, r)
	}
	require.Equal(t, []string{"nft removed a", "nft removed b", "nft removed b"}, reported)
	require.GreaterOrEqual(t, changes, 4, "start, flush, its retry, deletion")
}
