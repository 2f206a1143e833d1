// Package storage names what server and agents agree on about local volumes: directories that Coracle makes on nodes for claims.
package storage

import "k8s.io/apimachinery/pkg/types"

const (
	// DefaultClass is the name of the StorageClass that every cluster starts with.
	DefaultClass = "local"
	// Provisioner is the provisioner of classes whose volumes are directories on one node. They are not limited in size.
	Provisioner = "coracle.dev/local"
	// DirectoryAnnotation of a Node is the absolute path of the directory that holds its local volumes. Nodes without it have none.
	DirectoryAnnotation = "coracle.dev/local-volumes"
	// Finalizer of a PersistentVolume says that a node may still have its directory.
	Finalizer = "coracle.dev/local-volume"
)

// VolumeName returns the name of the PersistentVolume, and of the directory, for the claim with a UID, as upstream's provisioners name theirs.
func VolumeName(claim types.UID) string { return "pvc-" + string(claim) }
