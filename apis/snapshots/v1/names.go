package v1

// Annotations and finalizers that snapshot controllers and CSI drivers' sidecars agree on.
const (
	// DefaultAnnotation of a class, "true": it is the default of its driver.
	DefaultAnnotation = "snapshot.storage.kubernetes.io/is-default-class"
	// DeletingAnnotation of a content: its VolumeSnapshot is being deleted, and the driver may delete the snapshot with
	// the content.
	DeletingAnnotation = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
	// SecretNameAnnotation and SecretNamespaceAnnotation of a content name the Secret with which the driver deletes the
	// snapshot.
	SecretNameAnnotation      = "snapshot.storage.kubernetes.io/deletion-secret-name"
	SecretNamespaceAnnotation = "snapshot.storage.kubernetes.io/deletion-secret-namespace"

	// SourceFinalizer of a snapshot: a claim may be made from it. BoundFinalizer: its content may still be there.
	SourceFinalizer = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"
	BoundFinalizer  = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
	// ContentFinalizer of a content: the driver may still have the snapshot.
	ContentFinalizer = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	// ClaimFinalizer of a claim: a snapshot of its volume is being taken.
	ClaimFinalizer = "snapshot.storage.kubernetes.io/pvc-as-source-protection"

	// SecretNameParameter and SecretNamespaceParameter of a class are templates of the name of the Secret that the driver
	// gets.
	SecretNameParameter      = "csi.storage.k8s.io/snapshotter-secret-name"
	SecretNamespaceParameter = "csi.storage.k8s.io/snapshotter-secret-namespace"
)

// The same for groups of snapshots.
const (
	GroupDefaultAnnotation         = "groupsnapshot.storage.kubernetes.io/is-default-class"
	GroupDeletingAnnotation        = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted"
	GroupSecretNameAnnotation      = "groupsnapshot.storage.kubernetes.io/deletion-secret-name"
	GroupSecretNamespaceAnnotation = "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace"

	// GroupHandleAnnotation of a content is the driver's name for the group that it is a part of: the driver has its
	// snapshot already.
	GroupHandleAnnotation = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle"

	// InGroupFinalizer of a snapshot: it stays until its group has gone.
	InGroupFinalizer      = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection"
	GroupBoundFinalizer   = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection"
	GroupContentFinalizer = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection"

	GroupSecretNameParameter      = "csi.storage.k8s.io/group-snapshotter-secret-name"
	GroupSecretNamespaceParameter = "csi.storage.k8s.io/group-snapshotter-secret-namespace"
)
