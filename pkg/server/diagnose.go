package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/coracle-dev/coracle/pkg/api/apiserver"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/control/scheduler"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/node/dns"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/state/store"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

const (
	diagnosisTime = 3 * time.Second
	mostDetails   = 20
	// An object is failing after this many attempts over this time. The minimum excludes conflicts, which a retry
	// resolves.
	failingAttempts, failingTime = 3, 10 * time.Second
	// pendingTime is how long a pod may be pending before it is reported.
	pendingTime = 10 * time.Second
	// mostPending bounds the pods that are read of each kind; add counts only mostDetails of them.
	mostPending = 1000
	// A certificate that expires within certificateSoon is a warning, within certificateNow an error.
	certificateSoon, certificateNow = 30 * 24 * time.Hour, 2 * 24 * time.Hour
)

// Health implements socket.Backend. A component that does not respond within diagnosisTime is unhealthy.
func (p *process) Health(caller context.Context) []socket.Health {
	ctx, cancel := context.WithTimeout(caller, diagnosisTime)
	defer cancel()
	now := time.Now()
	var checks []func() socket.Health
	if l := p.plane; l != nil {
		checks = append(checks,
			func() socket.Health { return l.apiHealth(ctx) },
			func() socket.Health {
				// A server whose directory was removed still reads its open files.
				_, err := os.Stat(filepath.Join(p.DataDir, storeDir, store.Directory))
				return storeHealth(l.store.Stats(), l.store.Warning(), errors.Join(l.storeReads(ctx), err))
			},
			func() socket.Health { return l.cacheHealth(ctx) })
		if controllers, ok := l.controllers.leads(); ok {
			checks = append(checks, func() socket.Health { return reconcilerHealth(controllers.Report(), now) })
		}
		if scheduler, ok := l.scheduler.leads(); ok {
			checks = append(checks, func() socket.Health {
				pods, all := scheduler.Pending(mostPending)
				stranded, more := scheduler.Stranded(mostPending)
				return schedulerHealth(append(pods, stranded...), all+more, now)
			})
		}
		checks = append(checks, func() socket.Health {
			var list corev1.NodeList
			err := l.client(user.APIServerUser, user.SystemPrivilegedGroup).Cache().List(ctx, &list)
			return nodesHealth(list.Items, err, now)
		})
	}
	checks = append(checks, func() socket.Health {
		items, err := pki.Inspect(pkiDir(p.DataDir))
		admin, adminErr := command.AdminCertificate(p.DataDir)
		return certificateHealth(append(items, admin...), errors.Join(err, adminErr), now)
	})
	if n := p.node; n != nil {
		checks = append(checks,
			func() socket.Health { return n.proxyHealth() },
			func() socket.Health { return n.dnsHealth(ctx, dns.Address(p.nodeIP).String()) },
			func() socket.Health { return n.networkHealth(caller) },
			func() socket.Health { return n.agentHealth() },
		)
	}
	all := make([]socket.Health, len(checks))
	var wg sync.WaitGroup
	for i, check := range checks {
		wg.Go(func() { all[i] = check() })
	}
	wg.Wait()
	for i := range all {
		if more := len(all[i].Details) - mostDetails; more > 0 {
			all[i].Details = append(all[i].Details[:mostDetails:mostDetails], fmt.Sprintf("and %d more", more))
		}
	}
	return all
}

type health struct{ socket.Health }

func newHealth(component, format string, args ...any) *health {
	return &health{socket.Health{Component: component, State: socket.OK, Summary: fmt.Sprintf(format, args...)}}
}

// add adds a problem; the state becomes the worst one added.
func (h *health) add(state, format string, args ...any) {
	if h.State != socket.Unhealthy {
		h.State = state
	}
	h.Details = append(h.Details, fmt.Sprintf(format, args...))
}

func (l *plane) apiHealth(ctx context.Context) socket.Health {
	select {
	case <-l.apiserver.Ready():
	default:
		h := newHealth("api", "not started")
		h.State = socket.Unhealthy
		return h.Health
	}
	h := newHealth("api", "serving on %s", l.url)
	var failed []apiserver.Check
	var reasons []error
	for _, c := range l.checks() {
		if err := c.Check(ctx); err != nil {
			failed, reasons = append(failed, c), append(reasons, err)
		}
	}
	for i, c := range failed {
		h.add(socket.Unhealthy, "check %s fails: %v", c.Name, reasons[i])
	}
	return h.Health
}

func storeHealth(s store.Stats, warning string, reads error) socket.Health {
	h := newHealth("store", "%s in use of %s, revision %d", socket.Bytes(s.UsedBytes), socket.Bytes(s.QuotaBytes),
		s.Revision)
	if reads != nil {
		h.add(socket.Unhealthy, "cannot read: %v", reads)
		return h.Health
	}
	switch {
	case s.UsedBytes >= s.QuotaBytes:
		h.add(socket.Unhealthy, "quota used up, creates are refused: %s", warning)
	case warning != "":
		h.add(socket.Warning, "nearly full: %s", warning)
	}
	if s.DiskFreeBytes < s.DiskMinFreeBytes {
		h.add(socket.Unhealthy, "disk full, creates are refused: %s free, %s needed", socket.Bytes(s.DiskFreeBytes),
			socket.Bytes(s.DiskMinFreeBytes))
	}
	return h.Health
}

func (l *plane) cacheHealth(ctx context.Context) socket.Health {
	if err := l.cacheFollows(ctx); err != nil {
		h := newHealth("cache", "behind the store")
		h.add(socket.Unhealthy, "%v", err)
		return h.Health
	}
	objects := 0
	for _, s := range l.cache.Stats() {
		objects += s.Objects
	}
	return newHealth("cache", "%s, revision %d", count.Of(objects, "object"), l.cache.Revision()).Health
}

func reconcilerHealth(all []engine.Report, now time.Time) socket.Health {
	failing, queued := 0, 0
	for _, r := range all {
		failing, queued = failing+r.Failing, queued+r.Queued
	}
	h := newHealth("reconcilers", "%d running, %s queued, %d in back-off", len(all), count.Of(queued, "object"), failing)
	for _, r := range all {
		if !r.Synced {
			why := ""
			if r.LastCrash != "" {
				why = ": crashed: " + firstLine(r.LastCrash)
			}
			h.add(socket.Unhealthy, "%s is not synced%s", r.Name, why)
		}
		for _, f := range r.Failures {
			if f.Attempts >= failingAttempts && now.Sub(f.Since) >= failingTime {
				state := socket.Unhealthy
				if f.Refused {
					state = socket.Warning
				}
				h.add(state, "%s: %s failing for %s, %s: %s", r.Name, f.Object,
					duration.HumanDuration(now.Sub(f.Since)), count.Of(f.Attempts, "attempt"), firstLine(f.Error))
			}
		}
	}
	return h.Health
}

func schedulerHealth(pods []scheduler.Pending, all int, now time.Time) socket.Health {
	h := newHealth("scheduler", "%s pending", count.Of(all, "pod"))
	for _, p := range pods {
		if wait := now.Sub(p.Since); wait >= pendingTime && p.Reason != "" {
			// What preemption found is in the pod's condition and events.
			reason, _, _ := strings.Cut(p.Reason, " preemption: ")
			h.add(socket.Warning, "%s/%s pending for %s: %s", p.Namespace, p.Name, duration.HumanDuration(wait),
				firstLine(reason))
		}
	}
	if h.State == socket.Warning {
		h.Summary += ": `coracle help debug-a-pod`"
	}
	return h.Health
}

func nodesHealth(nodes []corev1.Node, err error, now time.Time) socket.Health {
	if err != nil {
		h := newHealth("nodes", "unknown")
		h.add(socket.Unhealthy, "cannot list nodes: %v", err)
		return h.Health
	}
	ready, cordoned := 0, 0
	var h health
	for i := range nodes {
		n := &nodes[i]
		if n.Spec.Unschedulable {
			cordoned++
		}
		found := false
		for _, c := range n.Status.Conditions {
			since := duration.HumanDuration(now.Sub(c.LastTransitionTime.Time))
			switch {
			case c.Type == corev1.NodeReady:
				found = true
				if c.Status == corev1.ConditionTrue {
					ready++
				} else {
					h.add(socket.Unhealthy, "%s not ready for %s: %s: %s%s", n.Name, since, c.Reason, firstLine(c.Message),
						lostNode(n.Name, c.Status))
				}
			case c.Status == corev1.ConditionTrue:
				h.add(socket.Warning, "%s has %s for %s: %s", n.Name, c.Type, since, firstLine(c.Message))
			}
		}
		if !found {
			h.add(socket.Unhealthy, "%s not ready: it never reported its state", n.Name)
		}
	}
	summary := newHealth("nodes", "%d of %d ready", ready, len(nodes))
	if cordoned > 0 {
		summary.Summary += fmt.Sprintf(", %d cordoned", cordoned)
	}
	summary.Details = h.Details
	if h.State != "" {
		summary.State = h.State
	}
	return summary.Health
}

// lostNode says what to do about a node that no longer reports its state.
func lostNode(name string, ready corev1.ConditionStatus) string {
	if ready != corev1.ConditionUnknown {
		return ""
	}
	return " Start its agent; if the machine is gone, `coracle ctl delete node " + name + "`"
}

func certificateHealth(items []pki.Item, err error, now time.Time) socket.Health {
	if err != nil {
		h := newHealth("certificates", "unreadable")
		h.add(socket.Unhealthy, "%v", err)
		return h.Health
	}
	// What has no successor, such as a retired key, may expire.
	items = slices.DeleteFunc(slices.Clone(items), func(i pki.Item) bool { return i.Until.IsZero() || i.Renewal == "" })
	if len(items) == 0 {
		return newHealth("certificates", "none on disk").Health
	}
	slices.SortFunc(items, func(a, b pki.Item) int { return a.Until.Compare(b.Until) })
	h := newHealth("certificates", "%s: %s left, renewed %s", items[0].Name,
		duration.HumanDuration(max(0, items[0].Until.Sub(now))), items[0].Renewal)
	for _, i := range items {
		switch left := i.Until.Sub(now); {
		case left <= 0:
			h.add(socket.Unhealthy, "%s expired at %s (%s)", i.Name, i.Until.UTC().Format(time.RFC3339), i.File)
		case left < certificateNow:
			h.add(socket.Unhealthy, "%s expires in %s (%s)", i.Name, duration.HumanDuration(left), i.File)
		case left < certificateSoon:
			h.add(socket.Warning, "%s expires in %s (%s)", i.Name, duration.HumanDuration(left), i.File)
		}
	}
	return h.Health
}

func (n *node) proxyHealth() socket.Health {
	s := n.proxy.Status()
	if s.Synced.IsZero() && s.Error == "" {
		h := newHealth("proxy", "not started")
		h.State = socket.Unhealthy
		return h.Health
	}
	h := newHealth("proxy", "%s", count.Of(s.Services, "service"))
	if s.Error != "" {
		h.add(socket.Unhealthy, "could not sync service rules: %s", firstLine(s.Error))
	}
	return h.Health
}

// dnsHealth asks this node's DNS server for the API's Service, a name that every cluster has.
func (n *node) dnsHealth(ctx context.Context, address string) socket.Health {
	name := "kubernetes.default.svc." + n.domain
	h := newHealth("dns", "answers on %s", address)
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		// The server answers its own address; the kernel may choose another one of this machine.
		return (&net.Dialer{LocalAddr: localAddr(network, address)}).DialContext(ctx, network, address)
	}}
	ctx, cancel := context.WithTimeout(ctx, diagnosisTime/2)
	defer cancel()
	if _, err := resolver.LookupNetIP(ctx, "ip4", name+"."); err != nil {
		if dnsErr, ok := errors.AsType[*net.DNSError](err); ok {
			dnsErr.Server = address
		}
		h.Summary = "not responding"
		h.add(socket.Unhealthy, "%v", err)
	}
	return h.Health
}

// localAddr returns the address of a server on this machine, without port, as a client's.
func localAddr(network, server string) net.Addr {
	at, err := netip.ParseAddrPort(server)
	switch at = netip.AddrPortFrom(at.Addr(), 0); {
	case err != nil:
		return nil
	case network == "udp":
		return net.UDPAddrFromAddrPort(at)
	}
	return net.TCPAddrFromAddrPort(at)
}

func (n *node) agentHealth() socket.Health {
	h := podsHealth(n.agent.Pods(), n.agent.Blocked())
	select {
	case <-n.agent.Ready():
	default:
		h.add(socket.Unhealthy, "not registered, or not ready yet")
	}
	for _, p := range n.agent.Pressure() {
		h.add(socket.Warning, "%s", p)
	}
	return h.Health
}

// mostFailing is the maximum number of failing pods that are listed.
const mostFailing = 10

// podsHealth counts the node's pods, and lists those that cannot be set up and the containers that fail to start or to
// run.
func podsHealth(pods []*corev1.Pod, blocked []pod.Blocked) *health {
	h := newHealth("node", "%s", count.Of(len(pods), "pod"))
	failing := 0
	add := func(namespace, name, what, reason, message string) {
		if failing++; failing <= mostFailing {
			h.add(socket.Warning, "%s/%s: %s%s: %s", namespace, name, what, reason, firstLine(message))
		}
	}
	for _, b := range blocked {
		add(b.Namespace, b.Name, "", b.Reason, b.Message)
	}
	for _, p := range pods {
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			w := c.State.Waiting
			if w == nil || w.Reason == "" || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing" ||
				p.DeletionTimestamp != nil {
				continue
			}
			add(p.Namespace, p.Name, "container "+c.Name+": ", w.Reason, w.Message)
			break
		}
	}
	if failing > 0 {
		h.Summary += fmt.Sprintf(", %d failing: `coracle help debug-a-pod`", failing)
	}
	return h
}

// mostLine is the maximum length of a detail line, in bytes, without the mark of a cut.
const mostLine = 1000

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if len(line) <= mostLine {
		return bounded.Text(line, mostLine)
	}
	// The cause and the remedy stand at the end.
	start, end := line[:mostLine/3], line[len(line)-mostLine*2/3:]
	if _, words, cut := strings.Cut(end, " "); cut {
		end = words
	}
	if i := strings.LastIndexByte(start, ' '); i > 0 {
		start = start[:i]
	}
	return strings.ToValidUTF8(start, "") + " ... " + strings.ToValidUTF8(end, "")
}
