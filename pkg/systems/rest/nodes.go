package rest

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	taskapi "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

const maxWorkers = 1000

type nodes Server

func (n *nodes) server() *Server { return (*Server)(n) }

// patience is how long Podling's master waits for a heartbeat. Podling's workers send one every 30 s by default.
const patience = 90 // seconds

// Routes implements Resource. The second routes of register and heartbeat come from Podling's design, with a heartbeat
// every 10 s and a timeout of 30 s; the others come from Podling's code.
func (n *nodes) Routes() []Route {
	register := Route{
		Method: http.MethodPost, Path: "/api/v1/nodes/register",
		Summary: "Register an external worker, heartbeat timeout 90 s unless it sets one",
		Handle:  decoded(func(c *Call, in *wire.RegisterNode) error { return n.register(c, in, patience) }),
		Body:    wire.RegisterNode{},
		Answer:  wire.Node{}, Status: http.StatusCreated, Refusals: []int{http.StatusTooManyRequests},
	}
	design := register
	design.Path = "/api/v1/nodes"
	design.Summary = "Register an external worker, heartbeat timeout 30 s unless it sets one"
	design.Handle = decoded(func(c *Call, in *wire.RegisterNode) error {
		return n.register(c, in, taskapi.DefaultHeartbeatTimeout)
	})
	design.Answer = wire.RegisteredNode{}
	return []Route{
		register, design,
		{
			Method: http.MethodPost, Path: "/api/v1/nodes/{id}/heartbeat", Summary: "Send a worker's heartbeat, every 10 s",
			Handle: n.heartbeat,
			Answer: wire.Node{},
		},
		{
			Method: http.MethodPost, Path: "/api/v1/heartbeat", Summary: "Send a worker's heartbeat, every 10 s",
			Handle: decoded(n.heartbeatBody),
			Body:   wire.Heartbeat{}, Answer: wire.Node{}, Refusals: []int{http.StatusNotFound},
		},
		{
			Method: http.MethodPost, Path: "/api/v1/nodes/{id}/deregister", Summary: "Remove a worker, which fails its tasks",
			Handle: n.deregister,
			Answer: wire.Message{},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/nodes", Summary: "List nodes", Handle: n.list, Query: paging,
			Answer: []wire.Node{},
		},
	}
}

// register registers a worker. silent is its heartbeat timeout in seconds, unless the request has one.
func (n *nodes) register(c *Call, in *wire.RegisterNode, silent int) error {
	in.HeartbeatTimeoutSeconds = cmp.Or(in.HeartbeatTimeoutSeconds, silent)
	if in.Hostname == "" || in.Port == 0 || in.Capacity == 0 && (in.CPU == "" || in.Memory == "") {
		return Refuse(http.StatusBadRequest, "hostname, port, cpu, and memory are required (or capacity, a number of tasks)")
	}
	address, err := n.server().workerAddress(c, in.Hostname, in.Port)
	if err != nil {
		return err
	}
	now := time.Now()
	node, err := view.NewNode(in, newName(in.Hostname), address, now)
	if err != nil {
		return Refuse(http.StatusBadRequest, "%v", err)
	}
	var there corev1.NodeList
	if err := n.cluster.List(c, &corev1.Node{}, &there, ctrl.MatchingLabels{taskapi.External: "true"}); err != nil {
		return err
	}
	if len(there.Items) >= n.maxWorkers {
		return Refuse(http.StatusTooManyRequests,
			"there are %d external workers already: remove those that are offline (prune)", n.maxWorkers)
	}
	if err := n.cluster.Create(c, node); err != nil {
		return err
	}
	if err := n.cluster.Create(c, lease(node, now)); err != nil {
		return err
	}
	// A worker registers again only after a restart or after it was offline. So the previous worker of this address is
	// gone or has lost its tasks, and its ID becomes invalid.
	for i := range there.Items {
		if before := &there.Items[i]; before.Annotations[view.AddressAnnotation] == address.String() {
			if err := n.cluster.Delete(c, before); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return err
			}
		}
	}
	return c.Answer(http.StatusCreated, wire.RegisteredNode{
		Node: view.Node(node, view.Load{}, now, view.Place{}), ID: node.Name,
	})
}

// lease returns the Lease of a worker, which records its heartbeats as for other nodes.
func lease(node *corev1.Node, now time.Time) *coordinationv1.Lease {
	at := metav1.NewMicroTime(now)
	seconds := int32(taskapi.Patience(node, 0) / time.Second)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: corev1.NamespaceNodeLease, Name: node.Name, OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
			}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node.Name, LeaseDurationSeconds: &seconds, RenewTime: &at},
	}
}

// workerAddress returns the address for requests to a worker. It is always the address that the registration came
// from, so that no client can make the server send requests elsewhere. The hostname must be that address or resolve to
// it; it is not resolved again. A worker on loopback must register over loopback. Link-local and multicast addresses
// and the facade's own port are refused.
//
// An external worker is a Node without an agent, with the label and taint tasks.External: only pods that tolerate the
// taint, such as all pods created here, are scheduled to it. As it is a Node and not a kind of our own, the scheduler,
// the node lifecycle, RBAC and kubectl treat it like other nodes. pkg/systems/tasks/externalworker sends it its pods.
//
// A registration is fenced by its ID, which is new each time, and by its source address: heartbeats, reports and
// deregistration are accepted from that address only.
func (s *Server) workerAddress(c *Call, host string, port int) (netip.AddrPort, error) {
	from := c.Remote()
	if port < 1 || port > 65535 {
		return netip.AddrPort{}, Refuse(http.StatusBadRequest, "port %d is not within 1 to 65535", port)
	}
	if !from.IsValid() || from.IsLinkLocalUnicast() || from.IsMulticast() || from.IsUnspecified() {
		return netip.AddrPort{}, Refuse(http.StatusBadRequest, "workers cannot register from %s", from)
	}
	if local, ok := c.Request.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok &&
		local.AddrPort() == netip.AddrPortFrom(from, uint16(port)) {
		return netip.AddrPort{}, Refuse(http.StatusBadRequest, "%s:%d is this server", host, port)
	}
	found, err := s.resolve(c, host)
	if err != nil {
		return netip.AddrPort{}, Refuse(http.StatusBadRequest, "hostname %q cannot be resolved", host)
	}
	for _, a := range found {
		if a.Unmap().WithZone("") == from {
			return netip.AddrPortFrom(from, uint16(port)), nil
		}
	}
	return netip.AddrPort{}, Refuse(http.StatusBadRequest,
		"hostname %q is not the address %s that the registration came from", host, from)
}

// maxHost bounds a hostname, in bytes; resolvePatience is the timeout of its resolution.
const (
	maxHost         = 253
	resolvePatience = 5 * time.Second
)

func (s *Server) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	if len(host) > maxHost {
		return nil, &net.DNSError{Err: "too long", Name: host[:maxHost]}
	}
	ctx, cancel := context.WithTimeout(ctx, resolvePatience)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

var (
	errNoNode    = Refuse(http.StatusNotFound, "node not found")
	errNotWorker = Refuse(http.StatusForbidden, "not an external worker")
	errNotOwner  = Refuse(http.StatusForbidden, "only the worker's own address may report for it")
)

// owner returns an error unless the request comes from the external worker with this name.
func (s *Server) owner(c *Call, name string) error {
	_, err := s.worker(c, name)
	return err
}

// worker returns the Node of an external worker. The request must come from that worker's address.
func (s *Server) worker(c *Call, name string) (*corev1.Node, error) {
	var node corev1.Node
	err := s.cluster.Get(c, "", name, &node)
	if apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) {
		return nil, errNoNode
	}
	if err != nil {
		return nil, err
	}
	if !taskapi.IsExternal(&node) {
		return nil, errNotWorker
	}
	address, err := view.Address(&node)
	if err != nil {
		return nil, err
	}
	if address.Addr() != c.Remote() {
		return nil, errNotOwner
	}
	return &node, nil
}

func (n *nodes) heartbeatBody(c *Call, in *wire.Heartbeat) error {
	in.NodeID = cmp.Or(in.NodeID, in.ID)
	if in.NodeID == "" {
		return Refuse(http.StatusBadRequest, "nodeId is required")
	}
	if in.Capacity < 0 || in.RunningTasks != nil && *in.RunningTasks < 0 {
		return Refuse(http.StatusBadRequest, "capacity and running_tasks must not be negative")
	}
	return n.beat(c, in.NodeID, in)
}

func (n *nodes) heartbeat(c *Call) error { return n.beat(c, c.Param("id"), &wire.Heartbeat{}) }

func (n *nodes) beat(c *Call, id string, in *wire.Heartbeat) error {
	if id == "" {
		return errNoNode
	}
	node, err := n.server().worker(c, id)
	if err != nil {
		return err
	}
	now := time.Now()
	if err := n.renew(c, node, now); err != nil {
		return err
	}
	load, err := n.load(c)
	if err != nil {
		return err
	}
	if !view.Online(node) || view.SetLoad(node.DeepCopy(), in, load[id].Tasks) {
		if node, err = n.online(c, id, in, load[id].Tasks); err != nil {
			return err
		}
	}
	return c.Answer(http.StatusOK, view.Node(node, load[node.Name], now, view.Place{}))
}

func (n *nodes) renew(c *Call, node *corev1.Node, now time.Time) error {
	return again(c, func() error {
		var have coordinationv1.Lease
		err := n.cluster.Get(c, corev1.NamespaceNodeLease, node.Name, &have)
		if apierrors.IsNotFound(err) {
			err = n.cluster.Create(c, lease(node, now))
			if apierrors.IsAlreadyExists(err) { // the cache does not have it yet
				return apierrors.NewConflict(coordinationv1.Resource("leases"), node.Name, err)
			}
			return err
		}
		if err != nil {
			return err
		}
		next := have.DeepCopy()
		at := metav1.NewMicroTime(now)
		if next.Spec.RenewTime != nil && !next.Spec.RenewTime.Before(&at) {
			return nil
		}
		next.Spec.RenewTime = &at
		return n.cluster.Update(c, next)
	})
}

// online sets the condition Ready of a worker, and the load in its heartbeat.
func (n *nodes) online(c *Call, id string, in *wire.Heartbeat, ours int) (next *corev1.Node, err error) {
	err = again(c, func() error {
		have, err := n.server().worker(c, id)
		if err != nil {
			return err
		}
		next = have.DeepCopy()
		view.SetLoad(next, in, ours)
		if !view.Online(next) {
			view.SetReady(next, corev1.ConditionTrue, "Heartbeat", "the external worker sends heartbeats", time.Now())
		}
		return n.cluster.UpdateStatus(c, next)
	})
	return next, err
}

// deregister deletes the worker's Node. Its tasks fail at once (NodeLost), and its metrics end. The worker may
// register again, with a new ID.
func (n *nodes) deregister(c *Call) error {
	node, err := n.server().worker(c, c.Param("id"))
	if err != nil {
		return err
	}
	if err := n.cluster.Delete(c, node); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return c.Answer(http.StatusOK, wire.Message{Message: "node deregistered successfully"})
}

func (n *nodes) list(c *Call) error {
	var list corev1.NodeList
	if err := n.cluster.List(c, &corev1.Node{}, &list); err != nil {
		return err
	}
	load, err := n.load(c)
	if err != nil {
		return err
	}
	beats, err := n.heartbeats(c)
	if err != nil {
		return err
	}
	facade := n.server().place(c)
	return page(c, pointers(list.Items), func(node *corev1.Node) any {
		return view.Node(node, load[node.Name], beats[node.Name], facade)
	})
}

func (n *nodes) heartbeats(ctx context.Context) (map[string]time.Time, error) {
	var leases coordinationv1.LeaseList
	if err := n.cluster.List(ctx, &coordinationv1.Lease{}, &leases, ctrl.InNamespace(corev1.NamespaceNodeLease)); err !=
		nil {
		return nil, err
	}
	at := make(map[string]time.Time, len(leases.Items))
	for i := range leases.Items {
		if t := leases.Items[i].Spec.RenewTime; t != nil {
			at[leases.Items[i].Name] = t.Time
		}
	}
	return at, nil
}

// load returns the running tasks and the requested resources by node.
func (n *nodes) load(ctx context.Context) (map[string]view.Load, error) {
	var list corev1.PodList
	if err := n.cluster.List(ctx, &corev1.Pod{}, &list); err != nil {
		return nil, err
	}
	of := map[string]view.Load{}
	for i := range list.Items {
		p := &list.Items[i]
		if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		l := of[p.Spec.NodeName]
		if p.Labels[taskapi.LabelTask] != "" {
			l.Tasks++
		}
		for j := range p.Spec.Containers {
			r := p.Spec.Containers[j].Resources.Requests
			l.Used.CPU += r.Cpu().MilliValue()
			l.Used.Memory += r.Memory().Value()
		}
		of[p.Spec.NodeName] = l
	}
	return of, nil
}

// place returns the address at which the client reached the facade. Clients look for logs at the address of a node,
// and the facade serves the logs of our own nodes.
func (s *Server) place(c *Call) view.Place {
	host, port, err := net.SplitHostPort(c.Request.Host)
	if err != nil {
		host, port = c.Request.Host, ""
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		if n = 443; s.cfg.RESTInsecure {
			n = 80
		}
	}
	return view.Place{Host: host, Port: n}
}
