// Package storage has the names and types shared by server and agents for local volumes: directories and block
// devices that Coracle creates on nodes for claims.
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
	// DefaultClass is the name of the StorageClass that every new cluster has.
	DefaultClass = "local"
	// Provisioner is the provisioner of StorageClasses whose volumes are directories on one node. Project quotas
	// enforce sizes if the file system has them; agents measure the volumes and evict pods that exceed them.
	Provisioner = "coracle.dev/local"
	// DirectoryAnnotation on a Node is the absolute path of the directory of its local volumes. Nodes without it
	// have none.
	DirectoryAnnotation = "coracle.dev/local-volumes"
	// Finalizer keeps a PersistentVolume while a node may have its directory.
	Finalizer = "coracle.dev/local-volume"

	// ContentAnnotation on a PersistentVolume is the source to fill its directory from before use: FromSnapshot or
	// FromVolume, a slash, and the name of a snapshot or volume on the same node. CopiedAnnotation means that the
	// directory has been filled.
	ContentAnnotation = "coracle.dev/content"
	CopiedAnnotation  = "coracle.dev/content-copied"
	FromSnapshot      = "snapshot"
	FromVolume        = "volume"

	// SnapshotNodeAnnotation on a VolumeSnapshotContent is the name of the node that may have received the request
	// for the snapshot.
	SnapshotNodeAnnotation = "coracle.dev/snapshot-node"

	// DefaultAnnotation and DefaultBetaAnnotation are "true" on the default StorageClass.
	DefaultAnnotation     = "storageclass.kubernetes.io/is-default-class"
	DefaultBetaAnnotation = "storageclass.beta.kubernetes.io/is-default-class"
)

// Snapshot describes a snapshot of a local volume, as its node reports it.
type Snapshot struct {
	Volume string `json:"volume"`
	// Size is the size of the volume when the snapshot was taken, in bytes.
	Size int64 `json:"size"`
	// Taken is when the snapshot began, in nanoseconds since 1970.
	Taken int64 `json:"taken"`
}

// ErrBusy means that a node cannot copy now. Retry later.
var ErrBusy = errors.New("the node copies as much as it can at once")

// CopyProgress is a line of a node's response while it copies, sent at least every CopyHeartbeat. The last line has
// Done set, and Error after a failure or Snapshot for a snapshot.
type CopyProgress struct {
	// Copied is the number of bytes copied so far.
	Copied   uint64    `json:"copied,omitempty"`
	Snapshot *Snapshot `json:"snapshot,omitempty"`
	Error    string    `json:"error,omitempty"`
	// Busy is set together with Error for ErrBusy.
	Busy bool `json:"busy,omitempty"`
	Done bool `json:"done,omitempty"`
}

const (
	// CopyHeartbeat is the maximum interval between lines of CopyProgress.
	CopyHeartbeat = 10 * time.Second
	// MaxCopyError is the maximum length of an error text, in bytes. The text may contain a tenant's file names.
	MaxCopyError = 1024
)

// Handle returns the handle of a snapshot on a node. Names of nodes and snapshots contain no slash.
func Handle(node, snapshot string) string { return node + "/" + snapshot }

// Impossible returns a requirement of a claim or its class that a directory on a node cannot meet, or "".
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

// ModeOf returns the volume mode, with the default Filesystem.
func ModeOf(mode *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if mode == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *mode
}

// NewVolume returns the PersistentVolume for a claim: a directory or block device on the node.
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

// HostOf returns the hostname label of the node with the directory of a local volume, or "".
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

// Ours reports whether Coracle provisioned the volume as a directory.
func Ours(v *corev1.PersistentVolume) bool {
	return v.Annotations[helpers.AnnDynamicallyProvisioned] == Provisioner && v.Spec.Local != nil
}

// VolumeName returns the name of the PersistentVolume and its directory for a claim's UID, in the format of
// upstream's provisioners.
func VolumeName(claim types.UID) string { return "pvc-" + string(claim) }

// Default returns the default class, or nil. If several are marked as default, it returns the newest.
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
