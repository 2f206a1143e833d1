package server

import (
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAddressThatIsGone checks that a node takes another address when its own stays away, and not when it returns.
func TestAddressThatIsGone(t *testing.T) {
	other := netip.MustParseAddr("192.0.2.2")
	for name, c := range map[string]struct {
		next []netip.Addr // after each change; the last one for good
		lost bool
	}{
		"another address":           {[]netip.Addr{other}, true},
		"no default route at first": {[]netip.Addr{{}, other}, true},
		"back in time":              {[]netip.Addr{other, {}}, false},
		"no default route":          {[]netip.Addr{{}}, false},
		"there":                     {[]netip.Addr{{}, {}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &address{log: slog.New(slog.DiscardHandler)}
				var now netip.Addr
				changes, ended := make(chan struct{}), make(chan error, 1)
				go func() { ended <- a.follow(changes, func() netip.Addr { return now }) }()
				for _, next := range c.next {
					synctest.Wait()
					now = next
					changes <- struct{}{}
					time.Sleep(addressGrace / 4)
				}
				time.Sleep(addressGrace)
				synctest.Wait()
				if c.lost {
					require.ErrorIs(t, <-ended, errAddressLost)
					require.True(t, a.lost.Load())
					return
				}
				close(changes)
				require.NoError(t, <-ended)
				require.False(t, a.lost.Load())
			})
		})
	}
}

func TestNextAddress(t *testing.T) {
	a := &address{was: netip.MustParseAddr("127.0.0.1")}
	require.False(t, a.next().IsValid(), "it is there")
}
