package attachdetach

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
)

// ForceAfter is how long an unused volume stays attached to an unhealthy node that still reports it in use. It is
// upstream's value.
const ForceAfter = 6 * time.Minute

const uniquePrefix = "kubernetes.io/csi/"

// Observed is the state of one node's volumes.
type Observed struct {
	// Node is nil if the node does not exist.
	Name string
	Node *corev1.Node
	// Wanted are the volumes that pods on the node use and that need attaching, by name.
	Wanted map[string]*corev1.PersistentVolume
	// Attachments are the node's attachments. Elsewhere lists the other nodes that a wanted volume is attached to,
	// by volume name.
	Attachments []*storagev1.VolumeAttachment
	Elsewhere   map[string][]string
	Volumes     map[string]*corev1.PersistentVolume
	// Since is when the reconciler first saw an attachment unused, by the attachment's name.
	Since map[string]time.Time
}

// Decision is what to do. The reconciler carries it out in the order of the fields.
type Decision struct {
	// Reported is the node's new status.volumesAttached. Volumes leave it before they are detached.
	Reported []corev1.AttachedVolume
	Detach   []*storagev1.VolumeAttachment
	Attach   []*corev1.PersistentVolume
	// Blocked are wanted volumes that can be attached to one node only and are attached to another.
	Blocked []*corev1.PersistentVolume
	// Unused are the names of the attachments that no pod uses.
	Unused []string
	// Again is the time until the next plan. Zero means that only an event requires one.
	Again time.Duration
}

// Plan decides which volumes to attach to a node and to detach from it. It is pure.
func Plan(o Observed, now time.Time) Decision {
	var d Decision
	have := map[string]bool{}
	busy := inUse(o.Node, o.Name)
	for _, a := range o.Attachments {
		pv := source(a)
		have[pv] = true
		_, wanted := o.Wanted[pv]
		if !wanted && a.DeletionTimestamp == nil && made(a) {
			d.Unused = append(d.Unused, a.Name)
			if wait := mayDetach(o, a, busy[a.Name], now); wait == 0 {
				d.Detach = append(d.Detach, a)
				continue
			} else if wait > 0 && (d.Again == 0 || wait < d.Again) {
				d.Again = wait
			}
		}
		if v := o.Volumes[pv]; v != nil && a.Status.Attached && a.DeletionTimestamp == nil {
			d.Reported = append(d.Reported, corev1.AttachedVolume{Name: uniqueName(v)})
		}
	}
	if o.Node != nil {
		for _, v := range o.Node.Status.VolumesAttached {
			if !strings.HasPrefix(string(v.Name), uniquePrefix) {
				d.Reported = append(d.Reported, v) // a volume of another controller
			}
		}
		for name, v := range o.Wanted {
			switch {
			case have[name]:
			case len(o.Elsewhere[name]) > 0 && !shareable(v):
				d.Blocked = append(d.Blocked, v)
			default:
				d.Attach = append(d.Attach, v)
			}
		}
	}
	byName := func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(d.Attach, byName)
	slices.SortFunc(d.Blocked, byName)
	slices.SortFunc(d.Reported, func(a, b corev1.AttachedVolume) int { return cmp.Compare(a.Name, b.Name) })
	return d
}

// mayDetach returns how long to wait before an unused attachment is deleted. Zero means delete it now. A negative
// value means wait for an event.
func mayDetach(o Observed, a *storagev1.VolumeAttachment, busy bool, now time.Time) time.Duration {
	switch {
	case !busy, o.Node == nil, nodestate.OutOfService(o.Node):
		return 0
	case nodestate.Ready(o.Node):
		return -1
	}
	since, seen := o.Since[a.Name]
	if !seen {
		since = now
	}
	return max(since.Add(ForceAfter).Sub(now), 0)
}

// inUse returns the names of the attachments whose volumes the node reports in use.
func inUse(n *corev1.Node, name string) map[string]bool {
	out := map[string]bool{}
	if n == nil {
		return out
	}
	for _, u := range n.Status.VolumesInUse {
		if text, ok := strings.CutPrefix(string(u), uniquePrefix); ok {
			driver, handle, _ := strings.Cut(text, "^")
			out[attachmentName(driver, handle, name)] = true
		}
	}
	return out
}

func shareable(v *corev1.PersistentVolume) bool {
	return len(v.Spec.AccessModes) == 0 || slices.Contains(v.Spec.AccessModes, corev1.ReadWriteMany) ||
		slices.Contains(v.Spec.AccessModes, corev1.ReadOnlyMany)
}

// made reports whether this reconciler made an attachment, judged by its name. As upstream, other attachments are
// left to their makers.
func made(a *storagev1.VolumeAttachment) bool {
	digest, ok := strings.CutPrefix(a.Name, "csi-")
	return ok && len(digest) == 2*sha256.Size
}

func source(a *storagev1.VolumeAttachment) string {
	if a.Spec.Source.PersistentVolumeName == nil {
		return ""
	}
	return *a.Spec.Source.PersistentVolumeName
}

func uniqueName(v *corev1.PersistentVolume) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(uniquePrefix + v.Spec.CSI.Driver + "^" + v.Spec.CSI.VolumeHandle)
}

// attachmentName is upstream's name, which CSI attachers and node agents compute as well.
func attachmentName(driver, handle, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}
