package v1

import (
	_ "embed"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is snapshot.storage.k8s.io/v1. Groups is groupsnapshot.storage.k8s.io/v1.
var (
	GroupVersion = schema.GroupVersion{Group: "snapshot.storage.k8s.io", Version: "v1"}
	Groups       = schema.GroupVersion{Group: "groupsnapshot.storage.k8s.io", Version: "v1"}
)

// Source is the source text of the types of VolumeSnapshots, ContentSource of VolumeSnapshotContents, ClassSource
// of VolumeSnapshotClasses; likewise for groups. `kubectl explain` shows their comments.
var (
	//go:embed snapshot.go
	Source string
	//go:embed content.go
	ContentSource string
	//go:embed class.go
	ClassSource string
	//go:embed group.go
	GroupSource string
	//go:embed group_content.go
	GroupContentSource string
	//go:embed group_class.go
	GroupClassSource string
)

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &VolumeSnapshot{}, &VolumeSnapshotList{}, &VolumeSnapshotContent{},
		&VolumeSnapshotContentList{},
		&VolumeSnapshotClass{}, &VolumeSnapshotClassList{})
	s.AddKnownTypes(Groups, &VolumeGroupSnapshot{}, &VolumeGroupSnapshotList{}, &VolumeGroupSnapshotContent{},
		&VolumeGroupSnapshotContentList{},
		&VolumeGroupSnapshotClass{}, &VolumeGroupSnapshotClassList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	metav1.AddToGroupVersion(s, Groups)
	return nil
}
