package pod

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	maxSearch      = 32
	maxNameservers = 3
)

// hostnames returns a pod's host name and its domain, which is empty without a subdomain.
func hostnames(p *corev1.Pod, clusterDomain string) (host, domain string) {
	if p.Spec.HostnameOverride != nil && *p.Spec.HostnameOverride != "" {
		return *p.Spec.HostnameOverride, ""
	}
	host = p.Spec.Hostname
	if host == "" {
		host = p.Name
		if len(host) > 63 {
			host = strings.TrimRight(host[:63], "-.")
		}
	}
	if p.Spec.Subdomain != "" {
		domain = p.Spec.Subdomain + "." + p.Namespace + ".svc." + clusterDomain
	}
	if p.Spec.SetHostnameAsFQDN != nil && *p.Spec.SetHostnameAsFQDN && domain != "" {
		host += "." + domain
	}
	return host, domain
}

// hostsFile returns the pod's /etc/hosts. host is the node's file, which hostNetwork pods get.
func hostsFile(p *corev1.Pod, podIP, clusterDomain string, host []byte) []byte {
	var b bytes.Buffer
	if p.Spec.HostNetwork {
		b.WriteString("# Kubernetes-managed hosts file (host network).\n")
		b.Write(host)
	} else {
		b.WriteString("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		name, domain := hostnames(p, clusterDomain)
		short, _, _ := strings.Cut(name, ".")
		switch {
		case p.Spec.HostnameOverride != nil && *p.Spec.HostnameOverride != "":
			fmt.Fprintf(&b, "%s\t%s\n", podIP, name)
		case domain != "":
			fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", podIP, short, domain, short)
		default:
			fmt.Fprintf(&b, "%s\t%s\n", podIP, name)
		}
	}
	if len(p.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range p.Spec.HostAliases {
			fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
		}
	}
	return b.Bytes()
}

type resolver struct {
	servers, search, options []string
}

func parseResolver(text []byte) resolver {
	var r resolver
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			r.servers = append(r.servers, f[1])
		case "search", "domain":
			r.search = f[1:]
		case "options":
			r.options = append(r.options, f[1:]...)
		}
	}
	return r
}

func (r resolver) bytes() []byte {
	var b bytes.Buffer
	if len(r.search) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(r.search[:min(len(r.search), maxSearch)], " "))
	}
	for _, s := range r.servers[:min(len(r.servers), maxNameservers)] {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(r.options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(r.options, " "))
	}
	return b.Bytes()
}

func resolvConf(p *corev1.Pod, host []byte, cluster []netip.Addr, domain string) []byte {
	r := parseResolver(host)
	policy := p.Spec.DNSPolicy
	if policy == corev1.DNSClusterFirst && p.Spec.HostNetwork || policy != corev1.DNSNone && len(cluster) == 0 {
		policy = corev1.DNSDefault
	}
	switch policy {
	case corev1.DNSNone:
		r = resolver{}
	case corev1.DNSDefault:
	default:
		r.servers = nil
		for _, a := range cluster {
			r.servers = append(r.servers, a.String())
		}
		own := []string{}
		if domain != "" {
			own = []string{p.Namespace + ".svc." + domain, "svc." + domain, domain}
		}
		r.search = unique(append(own, r.search...))
		r.options = []string{"ndots:5"}
	}
	if c := p.Spec.DNSConfig; c != nil {
		r.servers = unique(append(r.servers, c.Nameservers...))
		r.search = unique(append(r.search, c.Searches...))
		for _, o := range c.Options {
			text := o.Name
			if o.Value != nil && *o.Value != "" {
				text += ":" + *o.Value
			}
			r.options = append(r.options, text)
		}
		r.options = lastOfEach(r.options)
	}
	return r.bytes()
}

// lastOfEach removes the options that a later one of the same name overrides.
func lastOfEach(options []string) (out []string) {
	seen := map[string]bool{}
	for _, o := range slices.Backward(options) {
		if name, _, _ := strings.Cut(o, ":"); !seen[name] {
			seen[name] = true
			out = append(out, o)
		}
	}
	slices.Reverse(out)
	return out
}

func unique(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// writeFiles writes the pod's hosts, resolv.conf and hostname in place, because containers bind-mount them.
func (m *Manager) writeFiles(p *corev1.Pod, podIP string) error {
	dir := m.volumes.PodDir(p.UID)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	hostHosts, _ := os.ReadFile("/etc/hosts")
	hostResolv, _ := os.ReadFile(m.c.ResolvConf)
	name, _ := hostnames(p, m.c.ClusterDomain)
	if p.Spec.HostNetwork {
		name = m.c.NodeName
	}
	var errs []error
	for file, data := range map[string][]byte{
		"hosts":       hostsFile(p, podIP, m.c.ClusterDomain, hostHosts),
		"resolv.conf": resolvConf(p, hostResolv, m.c.ClusterDNS, m.c.ClusterDomain),
		"hostname":    []byte(name + "\n"),
	} {
		path := filepath.Join(dir, file)
		if have, err := bounded.File(path, int64(len(data))); err == nil && bytes.Equal(have, data) {
			continue // the read is bounded because containers can write the file
		}
		errs = append(errs, os.WriteFile(path, data, 0o644))
	}
	return errors.Join(errs...)
}

// writtenFiles returns the per-pod files that containers can write: /etc/hosts and the like, and termination messages.
func writtenFiles(dir string) []string {
	return []string{
		filepath.Join(dir, "hosts"), filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "hostname"),
		filepath.Join(dir, "containers"),
	}
}
