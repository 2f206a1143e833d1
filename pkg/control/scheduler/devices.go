package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// Inventory contains the available devices and their allocations.
type Inventory struct {
	// Slices describe the devices, including the taints of DeviceTaintRules.
	Slices []*resourcev1.ResourceSlice
	// Class returns a device class by name, or a not-found error.
	Class func(name string) (*resourcev1.DeviceClass, error)
	// Allocated contains all allocations, including those that are not written yet.
	Allocated []*resourcev1.AllocationResult
}

// Allocate allocates devices to claims on a node. It returns one allocation per claim, or an error if not all claims
// can be allocated there. An error that wraps ErrNotOnNode concerns only this node. Others mean that a claim or
// class is invalid.
type Allocate func(ctx context.Context, node *corev1.Node,
	claims []*resourcev1.ResourceClaim) ([]resourcev1.AllocationResult, error)

// ErrNotOnNode means that devices cannot be allocated on one node.
var ErrNotOnNode = errors.New("")

// allocationWait limits the search for devices on one node, as upstream.
const allocationWait = 10 * time.Second

// devices tracks the claims of waiting pods (KEP-4381) and unwritten allocations. The scheduler's lock guards it.
type devices struct {
	read ctrlclient.Reader
	// allocator is Config.Devices.
	allocator func(context.Context, Inventory) (Allocate, error)
	// start starts the watches. synced reports whether all objects are known. If start is nil, they are.
	start  func()
	synced func() bool
	// timeout is Config.DeviceTimeout.
	timeout time.Duration
	// pending contains allocations that are being written, by claim; chosen, the claims of each reserved pod.
	pending map[types.UID]*resourcev1.AllocationResult
	chosen  map[types.UID][]chosenClaim
	// classes maps extended resources to the classes that serve them. Nil means that it must be read again.
	classes map[corev1.ResourceName]string
}

// chosenClaim is a claim to reserve for a pod, and to allocate if allocation is not nil.
type chosenClaim struct {
	key        types.NamespacedName // without a name until it is stored
	uid        types.UID
	allocation *resourcev1.AllocationResult
	extended   *extendedClaim // nil unless the claim is for extended resources
	shown      bool           // the cache has shown the claim with its allocation
}

func newDevices(read ctrlclient.Reader) *devices {
	return &devices{
		read:    read,
		pending: map[types.UID]*resourcev1.AllocationResult{},
		chosen:  map[types.UID][]chosenClaim{},
	}
}

// deviceCycle is the state of one attempt for the resource claims of a pod.
type deviceCycle struct {
	pod   *corev1.Pod
	wrong string // why no node can be used, "" if there is no such reason
	held  []heldClaim
	// wanted are the claims that allocate must allocate.
	wanted []*resourcev1.ResourceClaim
	// served maps extended resources to device classes. stale is the claim for them that an earlier attempt left.
	served   map[corev1.ResourceName]string
	stale    *resourcev1.ResourceClaim
	allocate Allocate
	found    map[string]deviceResult // by node
	evicts   evictions
}

// heldClaim is a claim that has devices. nodes selects the nodes that can use them; nil means all nodes.
type heldClaim struct {
	*resourcev1.ResourceClaim
	nodes  *nodeaffinity.NodeSelector
	failed bool // the devices did not become ready in time, or never will
}

type deviceResult struct {
	allocations []resourcev1.AllocationResult // for wanted, followed by extended
	extended    *extendedClaim                // nil if not needed
	reason      string
}

const dynamicResources = "DynamicResources"

// Messages of DynamicResources.
const (
	devicesElsewhere = "resourceclaim not available on the node"
	devicesLacking   = "cannot allocate all claims"
	devicesStale     = "cannot schedule extended resource claim"
	devicesTainted   = "the devices have taints that their claims do not tolerate any longer"
)

// prepareDevices reads the pod's resource claims. It returns false if the pod needs no devices.
func prepareDevices(c *cycle) bool {
	if len(c.pod.Spec.ResourceClaims) == 0 && len(c.served) == 0 {
		return false
	}
	if c.devices == nil {
		c.devices = c.state.devices.look(c.pod, c.served)
	}
	return true
}

// look reads the claims of a pod, and prepares the claim for its extended resources. The reasons are upstream's.
func (d *devices) look(pod *corev1.Pod, served map[corev1.ResourceName]string) *deviceCycle {
	out := &deviceCycle{pod: pod, served: served, found: map[string]deviceResult{}, evicts: evictions{}}
	if d.start != nil {
		d.start()
		if !d.synced() {
			out.wrong = "waiting until the resource claims are known"
			return out
		}
	}
	for i := range pod.Spec.ResourceClaims {
		if err := d.lookAt(pod, &pod.Spec.ResourceClaims[i], out); err != nil {
			out.wrong = err.Error()
			return out
		}
	}
	if len(served) > 0 {
		var err error
		if out.stale, err = d.earlier(pod); err != nil {
			out.wrong = err.Error()
			return out
		}
		if out.stale != nil {
			out.wrong = devicesStale
			return out
		}
	}
	if len(out.wanted) == 0 && len(served) == 0 {
		return out
	}
	if d.allocator == nil {
		out.wrong = "this scheduler does not allocate devices"
		return out
	}
	inventory, err := d.inventory(out.wanted, out.evicts)
	if err == nil {
		out.allocate, err = d.allocator(context.Background(), inventory)
	}
	if err != nil {
		out.wrong = err.Error()
	}
	return out
}

func (d *devices) lookAt(pod *corev1.Pod, of *corev1.PodResourceClaim, out *deviceCycle) error {
	name, owned, err := resourceclaim.Name(pod, of)
	if err != nil {
		return err
	}
	if name == nil {
		return nil // the pod needs no claim
	}
	claim := &resourcev1.ResourceClaim{}
	if err := d.read.Get(context.Background(), types.NamespacedName{Namespace: pod.Namespace, Name: *name}, claim); err !=
		nil {
		if ctrlclient.IgnoreNotFound(err) == nil {
			return fmt.Errorf("resourceclaim %q not found", *name)
		}
		return err
	}
	if claim.DeletionTimestamp != nil {
		return fmt.Errorf("resourceclaim %q is being deleted", claim.Name)
	}
	if owned {
		if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
			return err
		}
	}
	switch a := claim.Status.Allocation; {
	case a == nil && d.pending[claim.UID] != nil:
		return fmt.Errorf("resource claim %s/%s is in the process of being allocated", claim.Namespace, claim.Name)
	case a == nil:
		out.wanted = append(out.wanted, claim)
	default:
		if len(claim.Status.ReservedFor) >= resourcev1.ResourceClaimReservedForMaxSize &&
			!resourceclaim.IsReservedForPod(pod, claim, false) {
			return errors.New("resourceclaim in use")
		}
		_, _, err := readiness(claim, d.timeout, now())
		held := heldClaim{ResourceClaim: claim, failed: err != nil}
		if a.NodeSelector != nil {
			if held.nodes, err = nodeaffinity.NewNodeSelector(a.NodeSelector); err != nil {
				return err
			}
		}
		out.held = append(out.held, held)
	}
	return nil
}

// inventory reads the devices and allocations for the wanted claims of a pod, and adds the devices' evicting taints
// to evicts. Its time is proportional to the number of claims and devices.
func (d *devices) inventory(wanted []*resourcev1.ResourceClaim, evicts evictions) (Inventory, error) {
	ctx := context.Background()
	var slices resourcev1.ResourceSliceList
	var rules resourcev1.DeviceTaintRuleList
	var claims resourcev1.ResourceClaimList
	for _, list := range []ctrlclient.ObjectList{&slices, &rules, &claims} {
		if err := d.read.List(ctx, list); err != nil {
			return Inventory{}, err
		}
	}
	in := Inventory{Class: func(name string) (*resourcev1.DeviceClass, error) {
		var class resourcev1.DeviceClass
		return &class, d.read.Get(ctx, types.NamespacedName{Name: name}, &class)
	}}
	written := map[types.UID]bool{}
	for i := range claims.Items {
		if a := claims.Items[i].Status.Allocation; a != nil {
			in.Allocated = append(in.Allocated, a)
			written[claims.Items[i].UID] = true
		}
	}
	for uid, a := range d.pending { // includes claims that are not stored yet
		if !written[uid] {
			in.Allocated = append(in.Allocated, a)
		}
	}
	used := inUse(in.Allocated)
	for i := range slices.Items {
		slice := tainted(&slices.Items[i], rules.Items)
		evicts.add(slice)
		in.Slices = append(in.Slices, evicts.spare(slice, wanted, used, now()))
	}
	return in, nil
}

func devicesUnfit(c *cycle, n *nodeInfo) []string {
	if why := c.devices.unfit(n); why != "" {
		return []string{why}
	}
	return nil
}

func (d *deviceCycle) unfit(n *nodeInfo) string {
	if d.wrong != "" {
		return d.wrong
	}
	for _, h := range d.held {
		if h.failed || h.nodes != nil && !h.nodes.Match(n.node) {
			return devicesElsewhere
		}
	}
	here := d.extended(n)
	if len(d.wanted) == 0 && len(here) == 0 {
		return ""
	}
	r, ok := d.found[n.name]
	if !ok {
		r = d.find(n, here)
		d.found[n.name] = r
	}
	return r.reason
}

// extended returns the classes of the extended resources that devices must serve on a node.
func (d *deviceCycle) extended(n *nodeInfo) map[corev1.ResourceName]string {
	var out map[corev1.ResourceName]string
	for name, class := range d.served {
		if n.most.extended[name] == 0 {
			if out == nil {
				out = map[corev1.ResourceName]string{}
			}
			out[name] = class
		}
	}
	return out
}

// find allocates devices on a node for the wanted claims, and for the extended resources of classes.
func (d *deviceCycle) find(n *nodeInfo, classes map[corev1.ResourceName]string) deviceResult {
	ctx, cancel := context.WithTimeout(context.Background(), allocationWait)
	defer cancel()
	wanted := slices.Clip(d.wanted)
	var extended *extendedClaim
	if len(classes) > 0 {
		var err error
		if extended, err = newExtendedClaim(d.pod, classes); err != nil {
			return deviceResult{reason: err.Error()}
		}
		wanted = append(wanted, extended.claim)
	}
	switch found, err := d.allocate(ctx, n.node, wanted); {
	case errors.Is(err, context.DeadlineExceeded):
		return deviceResult{reason: "timed out trying to allocate devices"}
	case errors.Is(err, ErrNotOnNode):
		return deviceResult{reason: strings.TrimSpace(err.Error())}
	case err != nil:
		d.wrong = err.Error() // the same on every node
		return deviceResult{reason: d.wrong}
	case len(found) != len(wanted):
		return deviceResult{reason: devicesLacking}
	case d.evicts.atOnce(found, now()):
		return deviceResult{reason: devicesTainted}
	default:
		return deviceResult{allocations: found, extended: extended}
	}
}

func takeDevices(s *state, p *podInfo, n *nodeInfo) error {
	d := s.devices
	served := d.served(p.need)
	if len(p.pod.Spec.ResourceClaims) == 0 && len(served) == 0 {
		return nil
	}
	c := d.look(p.pod, served)
	if reason := c.unfit(n); reason != "" {
		return errors.New(reason)
	}
	chosen := make([]chosenClaim, 0, len(c.held)+len(c.wanted)+1)
	at := new(metav1.NewTime(now().Truncate(time.Second))) // truncate, as the store does
	for _, h := range c.held {
		chosen = append(chosen, chosenClaim{key: ctrlclient.ObjectKeyFromObject(h.ResourceClaim), uid: h.UID})
	}
	for i, claim := range c.wanted {
		allocation := &c.found[n.name].allocations[i]
		allocation.AllocationTimestamp = at
		chosen = append(chosen, chosenClaim{
			key:        ctrlclient.ObjectKeyFromObject(claim),
			uid:        claim.UID,
			allocation: allocation,
		})
		d.pending[claim.UID] = allocation
	}
	if e := c.found[n.name].extended; e != nil {
		allocation := &c.found[n.name].allocations[len(c.wanted)]
		allocation.AllocationTimestamp = at
		chosen = append(chosen, chosenClaim{
			key:        types.NamespacedName{Namespace: p.pod.Namespace},
			uid:        e.claim.UID,
			allocation: allocation,
			extended:   e,
		})
		d.pending[e.claim.UID] = allocation
	}
	if len(chosen) > 0 {
		d.chosen[p.pod.UID] = chosen
	}
	return nil
}

// releaseDevices drops the choice of takeDevices. Allocations that are already written stay.
func releaseDevices(s *state, p *podInfo, _ *nodeInfo) { s.devices.release(p.pod.UID) }

func (d *devices) release(pod types.UID) {
	for _, c := range d.chosen[pod] {
		if c.allocation != nil && d.pending[c.uid] == c.allocation {
			delete(d.pending, c.uid)
		}
	}
	delete(d.chosen, pod)
}

// idle returns the unused claims that keep the pod from being scheduled, because their devices are on other nodes or
// did not become ready.
func (d *deviceCycle) idle(pod *corev1.Pod, nodes []*nodeInfo) []types.NamespacedName {
	var out []types.NamespacedName
	for _, h := range d.held {
		others := slices.ContainsFunc(h.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
			return r.UID != pod.UID
		})
		away := h.nodes != nil &&
			slices.ContainsFunc(nodes, func(n *nodeInfo) bool { return n.node != nil && !h.nodes.Match(n.node) })
		if (away || h.failed) && !others {
			out = append(out, ctrlclient.ObjectKeyFromObject(h.ResourceClaim))
		}
	}
	return out
}
