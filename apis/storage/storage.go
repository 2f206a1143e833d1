// Package storage names what server and agents agree on about local volumes: directories, and block devices, that
// Coracle makes on nodes for claims.
package storage

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	helpers "k8s.io/component-helpers/storage/volume"
)

const (
	// DefaultClass is the name of the StorageClass that every cluster starts with.
	DefaultClass = "local"
	// Provisioner is the provisioner of classes whose volumes are directories on one node. Their sizes are enforced where
	// the file system has project quotas.
	Provisioner = "coracle.dev/local"
	// DirectoryAnnotation of a Node is the absolute path of the directory that holds its local volumes. Nodes without it
	// have none.
	DirectoryAnnotation = "coracle.dev/local-volumes"
	// Finalizer of a PersistentVolume says that a node may still have its directory.
	Finalizer = "coracle.dev/local-volume"

	// ContentAnnotation of a PersistentVolume says what its directory is filled with before it is used: FromSnapshot or
	// FromVolume, a slash, and the name of a snapshot or another volume on the same node. CopiedAnnotation says that it
	// has been.
	ContentAnnotation = "coracle.dev/content"
	CopiedAnnotation  = "coracle.dev/content-copied"
	FromSnapshot      = "snapshot"
	FromVolume        = "volume"

	// SnapshotNodeAnnotation of a VolumeSnapshotContent is the name of the node that may have been asked for the snapshot.
	SnapshotNodeAnnotation = "coracle.dev/snapshot-node"

	// DefaultAnnotation and DefaultBetaAnnotation mark the default class with "true".
	DefaultAnnotation     = "storageclass.kubernetes.io/is-default-class"
	DefaultBetaAnnotation = "storageclass.beta.kubernetes.io/is-default-class"
)

// Snapshot is what a node says of a snapshot of one of its volumes.
type Snapshot struct {
	Volume string `json:"volume"`
	// Size is the volume's when it was taken, in bytes.
	Size int64 `json:"size"`
	// Taken is when it was begun, in nanoseconds since 1970.
	Taken int64 `json:"taken"`
}

// ErrBusy means that a node cannot copy now, and is to be asked again later.
var ErrBusy = errors.New("the node copies as much as it can at once")

// CopyProgress is one line of a node's answer while it copies, at least every CopyHeartbeat. The last one has Snapshot,
// or Error, or neither if there is nothing to say.
type CopyProgress struct {
	// Copied are the bytes so far.
	Copied   uint64    `json:"copied,omitempty"`
	Snapshot *Snapshot `json:"snapshot,omitempty"`
	Error    string    `json:"error,omitempty"`
	// Busy is set beside Error for ErrBusy.
	Busy bool `json:"busy,omitempty"`
	Done bool `json:"done,omitempty"`
}

const (
	// CopyHeartbeat is how often a node says at least that it still copies.
	CopyHeartbeat = 10 * time.Second
	// MaxCopyError limits the text of an error, part of which a tenant's file names may be, in bytes.
	MaxCopyError = 1024
)

// Handle is the snapshot handle of a snapshot on a node. Names of nodes and snapshots have no slash.
func Handle(node, snapshot string) string { return node + "/" + snapshot }

// Impossible returns what a claim or its class asks for and a directory on a node cannot give, "" if there is nothing.
func Impossible(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	c := &claim.Spec
	for _, mode := range c.AccessModes {
		if mode != corev1.ReadWriteOnce && mode != corev1.ReadWriteOncePod {
			return fmt.Sprintf("invalid AccessModes %v: only ReadWriteOnce and ReadWriteOncePod are supported by local volumes",
				c.AccessModes)
		}
	}
	switch {
	case c.Selector != nil:
		return "claim.Spec.Selector is not supported"
	case c.VolumeAttributesClassName != nil && *c.VolumeAttributesClassName != "":
		return "claim.Spec.VolumeAttributesClassName is not supported"
	case len(class.Parameters) > 0:
		return "the class has parameters, and local volumes take none"
	case len(class.MountOptions) > 0:
		return "the class has mountOptions, and local volumes take none"
	}
	return ""
}

// ModeOf returns a volumeMode, which is Filesystem unless it is set.
func ModeOf(mode *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if mode == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *mode
}

// NewVolume returns the volume of a claim that is a directory of a node, or a block device there.
func NewVolume(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass,
	n *corev1.Node) *corev1.PersistentVolume {
	name := VolumeName(c.UID)
	policy, mode := corev1.PersistentVolumeReclaimDelete, ModeOf(c.Spec.VolumeMode)
	if class.ReclaimPolicy != nil {
		policy = *class.ReclaimPolicy
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Finalizers:  []string{Finalizer},
			Annotations: map[string]string{helpers.AnnDynamicallyProvisioned: Provisioner},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: c.Spec.Resources.Requests[corev1.ResourceStorage].DeepCopy(),
			},
			AccessModes:                   slices.Clone(c.Spec.AccessModes),
			PersistentVolumeReclaimPolicy: policy, StorageClassName: class.Name, VolumeMode: &mode,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1",
				Kind:       "PersistentVolumeClaim",
				Namespace:  c.Namespace,
				Name:       c.Name,
				UID:        c.UID,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: path.Join(n.Annotations[DirectoryAnnotation], name)},
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{
				Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{n.Labels[corev1.LabelHostname]}},
					},
				}}},
			},
		},
	}
}

// HostOf returns the hostname label of the node that has the directory of one of Coracle's volumes, or "".
func HostOf(v *corev1.PersistentVolume) string {
	a := v.Spec.NodeAffinity
	if a == nil || a.Required == nil {
		return ""
	}
	for _, term := range a.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
}

// Ours reports whether a volume is a directory that Coracle provisioned.
func Ours(v *corev1.PersistentVolume) bool {
	return v.Annotations[helpers.AnnDynamicallyProvisioned] == Provisioner && v.Spec.Local != nil
}

// VolumeName returns the name of the PersistentVolume, and of the directory, for the claim with a UID, as upstream's
// provisioners name theirs.
func VolumeName(claim types.UID) string { return "pvc-" + string(claim) }

// Default returns the class that is marked as the default, the newest if there are several, or nil.
func Default(classes []*storagev1.StorageClass) *storagev1.StorageClass {
	var out *storagev1.StorageClass
	for _, c := range classes {
		if c.Annotations[DefaultAnnotation] != "true" && c.Annotations[DefaultBetaAnnotation] != "true" {
			continue
		}
		if out == nil || cmp.Or(out.CreationTimestamp.Compare(c.CreationTimestamp.Time), cmp.Compare(c.Name, out.Name)) < 0 {
			out = c
		}
	}
	return out
}
