package v1alpha1

import (
	_ "embed"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is tasks.coracle.dev/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "tasks.coracle.dev", Version: "v1alpha1"}

// Source is the source text of the types. `kubectl explain` shows its comments.
//
//go:embed types.go
var Source string

// ScheduleSource is the source text of the types of schedules.
//
//go:embed schedule.go
var ScheduleSource string

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Task{}, &TaskList{}, &TaskSchedule{}, &TaskScheduleList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
