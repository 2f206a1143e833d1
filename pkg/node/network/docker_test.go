package network

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBesideDocker: Docker's chain FORWARD drops what no rule accepts. With the rules in DOCKER-USER pods reach each
// other, rules that an administrator wrote there come first, and Reset leaves the chain and forwarding as they are.
func TestBesideDocker(t *testing.T) {
	nft := func(command string) string {
		out, err := exec.CommandContext(t.Context(), "nft", strings.Fields(command)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	for name, last := range map[string]string{
		"now":               "",
		"before release 28": "add rule ip filter DOCKER-USER counter return",
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0))
			n := newNet(t)
			require.NoError(t, AcceptInDocker(n.Prefix, podCIDR), "without Docker")
			nft("add table ip filter")
			defer nft("delete table ip filter")
			nft("add chain ip filter FORWARD { type filter hook forward priority 0 ; policy drop ; }")
			nft("add chain ip filter DOCKER-USER")
			nft("add rule ip filter FORWARD counter jump DOCKER-USER")
			nft("add rule ip filter DOCKER-USER tcp dport 81 counter drop")
			if last != "" {
				nft(last)
			}
			rules := func() string { return nft("-s list chain ip filter DOCKER-USER") } // without counters
			before := rules()
			to := setup(t, n, Pod{UID: "to"}).IP.String()
			setup(t, n, Pod{UID: "from"})
			serve(t, n, "to", 80)
			serve(t, n, "to", 81)
			reach := func(port string, patience time.Duration) error {
				return n.Enter(t.Context(), "from", func() error {
					c, err := net.DialTimeout("tcp4", to+port, patience)
					if err == nil {
						err = c.Close()
					}
					return err
				})
			}
			require.Error(t, reach(":80", 100*time.Millisecond), "Docker drops it")
			require.NoError(t, AcceptInDocker(n.Prefix, netip.MustParsePrefix("10.52.0.0/16")), "the former range")
			for range 2 {
				require.NoError(t, AcceptInDocker(n.Prefix, podCIDR))
			}
			require.Equal(t, 2, strings.Count(rules(), "\n")-strings.Count(before, "\n"))
			require.NoError(t, reach(":80", time.Minute))
			require.Error(t, reach(":81", 100*time.Millisecond), "the administrator's rule is first")
			require.NoError(t, Reset(t.Context(), n.Config))
			require.Equal(t, before, rules())
			forward, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
			require.NoError(t, err)
			require.Equal(t, "1\n", string(forward), "Docker found it on")
		})
	}
}
