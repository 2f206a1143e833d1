package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"
	helpers "k8s.io/component-helpers/storage/volume"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/apis/storage"
)

// volumes tracks claims of waiting pods and choices that the cache does not show yet. The scheduler's lock guards it.
type volumes struct {
	read ctrlclient.Reader
	// assumed maps chosen volumes to claims, nodes maps claims to the nodes to provision for.
	assumed map[string]types.NamespacedName
	nodes   map[types.NamespacedName]assumedNode
	// users counts, per claim, the assigned pods that use it.
	users map[types.NamespacedName]int
	// chosen contains the reserved choice of each pod.
	chosen map[types.UID]*choice
}

// assumedNode is the node that was selected for a claim, and the number of pods that need it there.
type assumedNode struct {
	node string
	pods int
}

// choice describes how to bind a pod's claims on its node.
type choice struct {
	static    map[types.NamespacedName]string // volume by claim
	provision []types.NamespacedName          // claims to provision on the node
	wait      []types.NamespacedName          // all claims of the pod that were unbound
}

func newVolumes(read ctrlclient.Reader) *volumes {
	return &volumes{read: read, assumed: map[string]types.NamespacedName{}, nodes: map[types.NamespacedName]assumedNode{},
		users: map[types.NamespacedName]int{}, chosen: map[types.UID]*choice{}}
}

func claimNames(p *corev1.Pod) []types.NamespacedName {
	var out []types.NamespacedName
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		var name string
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(p, v)
		default:
			continue
		}
		if key := (types.NamespacedName{Namespace: p.Namespace, Name: name}); !slices.Contains(out, key) {
			out = append(out, key)
		}
	}
	return out
}

// use counts (sign 1) or removes (-1) an assigned pod's use of its claims.
func (v *volumes) use(p *podInfo, sign int) {
	for _, key := range p.claims {
		if v.users[key] += sign; v.users[key] <= 0 {
			delete(v.users, key)
		}
	}
}

// volumeCycle is the state of one attempt for the claims of a pod.
type volumeCycle struct {
	wrong    string // why no node can be used, "" if there is no such reason
	selected string // the node for which a volume is being provisioned
	once     bool   // another pod uses a ReadWriteOncePod claim of this pod
	bound    []*corev1.PersistentVolume
	delayed  []delayedClaim
}

// delayedClaim is a claim to bind to a volume on the pod's node, or to provision there.
type delayedClaim struct {
	*corev1.PersistentVolumeClaim
	key        types.NamespacedName
	class      *storagev1.StorageClass
	candidates []*corev1.PersistentVolume
	pools      []pool
	published  bool // the driver publishes its capacity: only pools have enough
}

// prepareVolumes reads the pod's claims with their volumes and classes. It returns false if the pod has no claims.
func prepareVolumes(c *cycle) bool {
	if len(c.claims) == 0 {
		return false
	}
	if c.volumes == nil {
		c.volumes = c.state.volumes.look(c.podInfo)
	}
	return true
}

// look reads the claims of a pod. The reasons are upstream's.
func (v *volumes) look(p *podInfo) *volumeCycle {
	out := &volumeCycle{}
	for _, key := range p.claims {
		if out.wrong = v.lookAt(p, key, out); out.wrong != "" {
			return out
		}
	}
	return out
}

func (v *volumes) lookAt(p *podInfo, key types.NamespacedName, out *volumeCycle) string {
	ctx := context.Background()
	var claim corev1.PersistentVolumeClaim
	if err := v.read.Get(ctx, key, &claim); err != nil {
		for i := range p.pod.Spec.Volumes {
			if s := &p.pod.Spec.Volumes[i]; s.Ephemeral != nil && ephemeral.VolumeClaimName(p.pod, s) == key.Name {
				return fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", key.Name)
			}
		}
		return fmt.Sprintf("persistentvolumeclaim %q not found", key.Name)
	}
	for i := range p.pod.Spec.Volumes {
		if s := &p.pod.Spec.Volumes[i]; s.Ephemeral != nil && ephemeral.VolumeClaimName(p.pod, s) == key.Name {
			if err := ephemeral.VolumeIsForPod(p.pod, &claim); err != nil {
				return err.Error()
			}
		}
	}
	if claim.Status.Phase == corev1.ClaimLost {
		return fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", claim.Name,
			claim.Spec.VolumeName)
	}
	if claim.DeletionTimestamp != nil {
		return fmt.Sprintf("persistentvolumeclaim %q is being deleted", claim.Name)
	}
	if v.users[key] > 0 && slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
		out.once = true
	}
	if name := claim.Spec.VolumeName; name != "" {
		var pv corev1.PersistentVolume
		if _, done := claim.Annotations[helpers.AnnBindCompleted]; !done {
			return "pod has unbound immediate PersistentVolumeClaims"
		}
		if v.read.Get(ctx, ctrlclient.ObjectKey{Name: name}, &pv) != nil {
			return "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
		}
		out.bound = append(out.bound, &pv)
		return ""
	}
	var class storagev1.StorageClass
	name := helpers.GetPersistentVolumeClaimClass(&claim)
	if name == "" || v.read.Get(ctx, ctrlclient.ObjectKey{Name: name}, &class) != nil ||
		class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
		return "pod has unbound immediate PersistentVolumeClaims"
	}
	if node, ok := claim.Annotations[helpers.AnnSelectedNode]; ok {
		// Do not retry the pod until then, so that a failing provisioner does not block bindings of other pods.
		out.selected = node
		return fmt.Sprintf("waiting for persistentvolumeclaim %q to be provisioned on node %q", key.Name, node)
	}
	pools, published := v.pools(&claim, &class)
	out.delayed = append(out.delayed, delayedClaim{&claim, key, &class, v.candidates(&claim, name), pools, published})
	return ""
}

// candidates returns the volumes of a class that are free or reserved for the claim.
func (v *volumes) candidates(claim *corev1.PersistentVolumeClaim, class string) []*corev1.PersistentVolume {
	var list corev1.PersistentVolumeList
	if v.read.List(context.Background(), &list) != nil {
		return nil
	}
	var out []*corev1.PersistentVolume
	for i := range list.Items {
		pv := &list.Items[i]
		if helpers.GetPersistentVolumeClass(pv) == class &&
			(pv.Spec.ClaimRef == nil || helpers.IsVolumeBoundToClaim(pv, claim)) {
			out = append(out, pv)
		}
	}
	// Smaller volumes come first, which leaves larger ones to claims that need them.
	slices.SortFunc(out, func(a, b *corev1.PersistentVolume) int {
		x, y := a.Spec.Capacity[corev1.ResourceStorage], b.Spec.Capacity[corev1.ResourceStorage]
		return x.Cmp(y)
	})
	return out
}

// Messages of VolumeBinding, VolumeRestrictions and VolumeZone.
const (
	noVolumeToBind   = "node(s) didn't find available persistent volumes to bind"
	volumeElsewhere  = "node(s) didn't match PersistentVolume's node affinity"
	usedByAnotherPod = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already " +
		"in-use by another pod"
	otherZone = "node(s) had no available volume zone"
)

func volumesUnfit(c *cycle, n *nodeInfo) []string { return c.volumesUnfit(n, nil) }

// volumesUnfit returns why a node cannot provide the pod's volumes. If it can and into is not nil, it fills into.
func (c *cycle) volumesUnfit(n *nodeInfo, into *choice) []string {
	v := c.volumes
	if v.wrong != "" {
		return []string{v.wrong}
	}
	for _, pv := range v.bound {
		if helpers.CheckNodeAffinity(pv, n.node.Labels) != nil {
			return []string{volumeElsewhere}
		}
	}
	taken := map[string]*corev1.PersistentVolume{}
	for i := range v.delayed {
		d := &v.delayed[i]
		if into != nil {
			into.wait = append(into.wait, d.key)
		}
		if a, ok := c.state.volumes.nodes[d.key]; ok {
			if a.node != n.name {
				return []string{noVolumeToBind}
			}
			continue
		}
		for name, key := range c.state.volumes.assumed {
			if key != d.key {
				taken[name] = nil
			}
		}
		match, err := helpers.FindMatchingVolume(d.PersistentVolumeClaim, d.candidates, n.node, taken, true, true)
		switch {
		case err != nil:
			return []string{noVolumeToBind}
		case match != nil:
			taken[match.Name] = match
			if into != nil {
				into.static[d.key] = match.Name
			}
		case !provisions(d.class, n):
			return []string{noVolumeToBind}
		case d.published && d.pool(n) == nil:
			return []string{notEnoughSpace}
		case into != nil:
			into.provision = append(into.provision, d.key)
		}
	}
	return nil
}

// provisions reports whether a class's provisioner can provision a volume for a node.
func provisions(class *storagev1.StorageClass, n *nodeInfo) bool {
	switch class.Provisioner {
	case helpers.NotSupportedProvisioner:
		return false
	case storage.Provisioner:
		if n.node.Annotations[storage.DirectoryAnnotation] == "" {
			return false
		}
	}
	return len(class.AllowedTopologies) == 0 ||
		slices.ContainsFunc(class.AllowedTopologies, func(t corev1.TopologySelectorTerm) bool {
			return len(t.MatchLabelExpressions) > 0 &&
				!slices.ContainsFunc(t.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
					value, ok := n.node.Labels[e.Key]
					return !ok || !slices.Contains(e.Values, value)
				})
		})
}

func claimsFree(c *cycle, _ *nodeInfo) bool { return !c.volumes.once }

// zoneLabels on a volume restrict it to nodes with one of the label's values, which are separated by "__".
var zoneLabels = []string{
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone,
	corev1.LabelFailureDomainBetaRegion,
}

func zonesMatch(c *cycle, n *nodeInfo) bool {
	for _, pv := range c.volumes.bound {
		for _, label := range zoneLabels {
			if zones, ok := pv.Labels[label]; ok && !slices.Contains(strings.Split(zones, "__"), n.node.Labels[label]) {
				return false
			}
		}
	}
	return true
}

func takeVolumes(s *state, p *podInfo, n *nodeInfo) error {
	if len(p.claims) == 0 {
		return nil
	}
	c := &cycle{podInfo: p, state: s, volumes: s.volumes.look(p)}
	chosen := &choice{static: map[types.NamespacedName]string{}}
	if wrong := c.volumesUnfit(n, chosen); len(wrong) > 0 {
		return fmt.Errorf("%s", strings.Join(wrong, ", "))
	}
	v := s.volumes
	for key, name := range chosen.static {
		v.assumed[name] = key
	}
	for _, key := range chosen.provision {
		a := v.nodes[key]
		v.nodes[key] = assumedNode{n.name, a.pods + 1}
	}
	v.chosen[p.pod.UID] = chosen
	return nil
}

// releaseVolumes drops the choice of takeVolumes. Bindings that are already written stay.
func releaseVolumes(s *state, p *podInfo, _ *nodeInfo) { s.volumes.release(p.pod.UID) }

func (v *volumes) release(uid types.UID) {
	chosen := v.chosen[uid]
	if chosen == nil {
		return
	}
	delete(v.chosen, uid)
	for key, name := range chosen.static {
		if v.assumed[name] == key {
			delete(v.assumed, name)
		}
	}
	for _, key := range chosen.provision {
		if a := v.nodes[key]; a.pods > 1 {
			a.pods--
			v.nodes[key] = a
		} else {
			delete(v.nodes, key)
		}
	}
}
