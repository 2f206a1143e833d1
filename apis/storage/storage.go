// Package storage names what server and agents agree on about local volumes: directories that Coracle makes on nodes for claims.
package storage

import (
	"cmp"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// DefaultClass is the name of the StorageClass that every cluster starts with.
	DefaultClass = "local"
	// Provisioner is the provisioner of classes whose volumes are directories on one node. Their sizes are enforced where the file system has project quotas.
	Provisioner = "coracle.dev/local"
	// DirectoryAnnotation of a Node is the absolute path of the directory that holds its local volumes. Nodes without it have none.
	DirectoryAnnotation = "coracle.dev/local-volumes"
	// Finalizer of a PersistentVolume says that a node may still have its directory.
	Finalizer = "coracle.dev/local-volume"

	// DefaultAnnotation and DefaultBetaAnnotation mark the default class with "true".
	DefaultAnnotation     = "storageclass.kubernetes.io/is-default-class"
	DefaultBetaAnnotation = "storageclass.beta.kubernetes.io/is-default-class"
)

// VolumeName returns the name of the PersistentVolume, and of the directory, for the claim with a UID, as upstream's provisioners name theirs.
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
