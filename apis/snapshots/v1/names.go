package v1

// Annotations, finalizers and parameters shared by snapshot controllers and the sidecars of CSI drivers.
const (
	// DefaultAnnotation is "true" on a class that is the default for its driver.
	DefaultAnnotation = "snapshot.storage.kubernetes.io/is-default-class"
	// DeletingAnnotation on a content means that its VolumeSnapshot is being deleted, so that the driver may delete
	// the snapshot with the content.
	DeletingAnnotation = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
	// SecretNameAnnotation and SecretNamespaceAnnotation on a content name the Secret with which the driver deletes
	// the snapshot.
	SecretNameAnnotation      = "snapshot.storage.kubernetes.io/deletion-secret-name"
	SecretNamespaceAnnotation = "snapshot.storage.kubernetes.io/deletion-secret-namespace"

	// SourceFinalizer keeps a snapshot while a claim may be restored from it. BoundFinalizer keeps it while its
	// content may exist.
	SourceFinalizer = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"
	BoundFinalizer  = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
	// ContentFinalizer keeps a content while the driver may have the snapshot.
	ContentFinalizer = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	// ClaimFinalizer keeps a claim while a snapshot of its volume is being taken.
	ClaimFinalizer = "snapshot.storage.kubernetes.io/pvc-as-source-protection"

	// SecretNameParameter and SecretNamespaceParameter of a class are templates for the name and namespace of the
	// driver's Secret.
	SecretNameParameter      = "csi.storage.k8s.io/snapshotter-secret-name"
	SecretNamespaceParameter = "csi.storage.k8s.io/snapshotter-secret-namespace"
)

// The same for groups of snapshots.
const (
	GroupDefaultAnnotation         = "groupsnapshot.storage.kubernetes.io/is-default-class"
	GroupDeletingAnnotation        = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted"
	GroupSecretNameAnnotation      = "groupsnapshot.storage.kubernetes.io/deletion-secret-name"
	GroupSecretNamespaceAnnotation = "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace"

	// GroupHandleAnnotation on a content is the driver's ID of the group that it belongs to. The driver has already
	// taken its snapshot.
	GroupHandleAnnotation = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle"

	// InGroupFinalizer keeps a snapshot while its group exists.
	InGroupFinalizer      = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection"
	GroupBoundFinalizer   = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection"
	GroupContentFinalizer = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection"

	GroupSecretNameParameter      = "csi.storage.k8s.io/group-snapshotter-secret-name"
	GroupSecretNamespaceParameter = "csi.storage.k8s.io/group-snapshotter-secret-namespace"
)
