package probe

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
)

// Guard restricts the hosts that probes and hooks may name. They connect from the node, so that a pod could otherwise
// reach what serves only the machine itself: its loopback, link-local addresses, where clouds serve its credentials,
// and the node's own ports. It does not restrict connections to the pod itself, and pods in the host's network.
type Guard struct {
	// Any allows all hosts, as upstream.
	Any bool
	// Ports are the ports on which the node itself serves.
	Ports []uint16
}

// metadataIPv6 are the IPv6 addresses of clouds' metadata services that are not link-local.
var metadataIPv6 = netip.MustParsePrefix("fd00:ec2::/32")

// control implements net.Dialer.Control: the address is the one to which a name was resolved.
func (g Guard) control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || metadataIPv6.Contains(ip) ||
		slices.Contains(g.Ports, at.Port()) && ofMachine(ip) {
		return fmt.Errorf("%s is the machine's own, and not for the probes and hooks of pods without hostNetwork: leave out "+
			"the host to reach the pod, or start the agent with --pod-probe-any-host", at)
	}
	return nil
}

// ofMachine reports whether the machine has the address. It returns true if that is unknown.
func ofMachine(ip netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(all, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().Unmap() == ip
	})
}

// Client connects to pods, and to the hosts that their probes and hooks name.
type Client struct{ pods, hosts connector }

type connector struct {
	http   *http.Client
	dialer *net.Dialer
}

// NewClient returns a Client.
func NewClient(g Guard) *Client {
	c := &Client{pods: connect(&net.Dialer{})}
	if c.hosts = c.pods; !g.Any {
		c.hosts = connect(&net.Dialer{Control: g.control})
	}
	return c
}

func (c *Client) to(host string, t Target) connector {
	if host == "" || t.HostNetwork {
		return c.pods
	}
	return c.hosts
}

// CloseIdleConnections ends what is left of requests.
func (c *Client) CloseIdleConnections() {
	c.pods.http.CloseIdleConnections()
	c.hosts.http.CloseIdleConnections()
}

// maxRedirects is the number of redirects to the same host that are followed.
const maxRedirects = 10

// connect returns a connector whose HTTP client has no keep-alive and verifies no certificates. It returns redirects to
// other hosts without following them.
func connect(d *net.Dialer) connector {
	return connector{dialer: d, http: &http.Client{
		Transport: &http.Transport{
			DialContext:        d.DialContext,
			TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // pods' own certificates; as upstream
			DisableKeepAlives:  true,
			DisableCompression: true,
			Proxy:              nil,
			// The headers come from the container.
			MaxResponseHeaderBytes: maxHeaders,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Hostname() != via[0].URL.Hostname() {
				return http.ErrUseLastResponse
			}
			if len(via) >= maxRedirects {
				return fmt.Errorf("stopped after %d redirects", maxRedirects)
			}
			return nil
		},
	}}
}
