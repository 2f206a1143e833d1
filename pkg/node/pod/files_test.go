package pod

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestResolvConf(t *testing.T) {
	host := []byte("# comment\nnameserver 192.0.2.53\nnameserver 192.0.2.54\nsearch example.com\noptions timeout:1\n")
	cluster := []netip.Addr{netip.MustParseAddr("10.43.0.10")}
	two := "2"
	own := &corev1.PodDNSConfig{Nameservers: []string{"10.42.0.7"}, Searches: []string{"resolv.conf.local"},
		Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "edns0"}}}
	many := &corev1.PodDNSConfig{
		Nameservers: []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"}, Searches: make([]string, 0, 40),
	}
	for i := range 40 {
		many.Searches = append(many.Searches, strings.Repeat("x", i+1)+".test")
	}
	first := "search default.svc.cluster.local svc.cluster.local cluster.local example.com"
	for name, tt := range map[string]struct {
		policy      corev1.DNSPolicy
		hostNetwork bool
		config      *corev1.PodDNSConfig
		noCluster   bool
		want        string
	}{
		"cluster first": {
			policy: corev1.DNSClusterFirst, want: first + "\nnameserver 10.43.0.10\noptions ndots:5\n",
		},
		"cluster first, with its own": {
			policy: corev1.DNSClusterFirst, config: own,
			want: first + " resolv.conf.local\nnameserver 10.43.0.10\nnameserver 10.42.0.7\noptions ndots:2 edns0\n",
		},
		"the host's network": {
			policy: corev1.DNSClusterFirst, hostNetwork: true,
			want: "search example.com\nnameserver 192.0.2.53\nnameserver 192.0.2.54\noptions timeout:1\n",
		},
		"the host's network, but cluster": {
			policy: corev1.DNSClusterFirstWithHostNet, hostNetwork: true,
			want: first + "\nnameserver 10.43.0.10\noptions ndots:5\n",
		},
		"default": {
			policy: corev1.DNSDefault,
			want:   "search example.com\nnameserver 192.0.2.53\nnameserver 192.0.2.54\noptions timeout:1\n",
		},
		"no cluster DNS": {
			policy: corev1.DNSClusterFirst, noCluster: true,
			want: "search example.com\nnameserver 192.0.2.53\nnameserver 192.0.2.54\noptions timeout:1\n",
		},
		"none": {
			policy: corev1.DNSNone, config: own, want: "search resolv.conf.local\nnameserver 10.42.0.7\noptions ndots:2 edns0\n",
		},
		"none at all": {policy: corev1.DNSNone, noCluster: true, want: ""},
		"more than a resolver takes": {policy: corev1.DNSNone, config: many,
			want: "search " + strings.Join(many.Searches[:32], " ") +
				"\nnameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := spec(corev1.RestartPolicyAlways, nil, []string{"a"})
			p.Spec.DNSPolicy, p.Spec.HostNetwork, p.Spec.DNSConfig = tt.policy, tt.hostNetwork, tt.config
			servers := cluster
			if tt.noCluster {
				servers = nil
			}
			require.Equal(t, tt.want, string(resolvConf(p, host, servers, "cluster.local")))
		})
	}
}

func TestHostsFile(t *testing.T) {
	yes, override := true, "other.example.com"
	for name, tt := range map[string]struct {
		change func(*corev1.PodSpec)
		want   string
		host   string
	}{
		"plain":    {func(*corev1.PodSpec) {}, "10.42.0.7\tp\n", "p"},
		"hostname": {func(s *corev1.PodSpec) { s.Hostname = "db" }, "10.42.0.7\tdb\n", "db"},
		"subdomain": {
			func(s *corev1.PodSpec) { s.Hostname, s.Subdomain = "db", "all" },
			"10.42.0.7\tdb.all.default.svc.cluster.local\tdb\n", "db",
		},
		"as FQDN": {
			func(s *corev1.PodSpec) { s.Subdomain, s.SetHostnameAsFQDN = "all", &yes },
			"10.42.0.7\tp.all.default.svc.cluster.local\tp\n", "p.all.default.svc.cluster.local",
		},
		"override": {
			func(s *corev1.PodSpec) { s.Subdomain, s.HostnameOverride = "all", &override }, "10.42.0.7\tother.example.com\n",
			"other.example.com",
		},
		"aliases": {func(s *corev1.PodSpec) {
			s.HostAliases = []corev1.HostAlias{{IP: "192.0.2.9", Hostnames: []string{"x", "y"}}}
		}, "192.0.2.9\tx\ty\n", "p"},
		"host's own": {func(s *corev1.PodSpec) { s.HostNetwork = true }, "192.0.2.1 the-host\n", "p"},
		"host's, alias": {func(s *corev1.PodSpec) {
			s.HostNetwork = true
			s.HostAliases = []corev1.HostAlias{{IP: "192.0.2.9", Hostnames: []string{"x"}}}
		}, "192.0.2.9\tx\n", "p"},
	} {
		t.Run(name, func(t *testing.T) {
			p := spec(corev1.RestartPolicyAlways, nil, []string{"a"})
			tt.change(&p.Spec)
			text := string(hostsFile(p, "10.42.0.7", "cluster.local", []byte("192.0.2.1 the-host\n")))
			require.True(t, strings.HasPrefix(text, "# Kubernetes-managed hosts file"), text)
			require.True(t, strings.HasSuffix(text, tt.want), text)
			require.Equal(t, !p.Spec.HostNetwork, strings.Contains(text, "127.0.0.1\tlocalhost\n"))
			host, _ := hostnames(p, "cluster.local")
			require.Equal(t, tt.host, host)
		})
	}
}

// Termination messages are read in bounded memory and not through symbolic links.
func TestFileEnd(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "message")
	require.Empty(t, fileEnd(path, 4))
	require.NoError(t, os.WriteFile(path, []byte("message"), 0o600))
	require.Equal(t, "message", fileEnd(path, 100))
	require.Equal(t, "sage", fileEnd(path, 4))
	require.NoError(t, os.Symlink(path, filepath.Join(dir, "link")))
	require.Empty(t, fileEnd(filepath.Join(dir, "link"), 4))
	require.NoError(t, os.Truncate(path, 1<<40))
	require.Equal(t, "\x00\x00\x00\x00", fileEnd(path, 4))
}

// A pod's options, of which the API allows any number, are merged in linear time.
func TestManyOptionsOfAResolver(t *testing.T) {
	p := spec(corev1.RestartPolicyAlways, nil, []string{"a"})
	p.Spec.DNSConfig = &corev1.PodDNSConfig{}
	for i := range 60_000 { // a pod of 1 MB
		p.Spec.DNSConfig.Options = append(p.Spec.DNSConfig.Options, corev1.PodDNSConfigOption{Name: strconv.Itoa(i)})
	}
	began := time.Now()
	require.Contains(t, string(resolvConf(p, nil, nil, "")), " 59999\n")
	require.Less(t, time.Since(began), 2*time.Second)
}
