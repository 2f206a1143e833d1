package volumesnapshot

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helpers "k8s.io/component-helpers/storage/volume"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/engine"
)

func TestPlanGroup(t *testing.T) {
	classes := []*snapshots.VolumeGroupSnapshotClass{groupClass("class"), groupClass("other", isDefaultGroup)}
	two := []Source{sourceNamed("a"), sourceNamed("b")}
	noClass := func(g *snapshots.VolumeGroupSnapshot) { g.Spec.VolumeGroupSnapshotClassName = nil }
	local := func(s *Source) {
		s.Volume.Annotations = map[string]string{helpers.AnnDynamicallyProvisioned: storage.Provisioner}
		s.Volume.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/x"}}
	}
	says := func(want string) func(*testing.T, Step) {
		return func(t *testing.T, s Step) { require.Contains(t, *s.Group.Status.Error.Message, want) }
	}
	of := func(s Source) GroupState {
		return GroupState{Group: group("g"), Classes: classes, Selected: 2, Sources: []Source{sourceNamed("a"), s}}
	}
	for name, tt := range map[string]struct {
		s      GroupState
		op     Op
		reason string
		check  func(*testing.T, Step)
	}{
		"it is protected first": {
			s: GroupState{Group: group("g", func(g *snapshots.VolumeGroupSnapshot) { g.Finalizers = nil })}, op: UpdateGroup,
		},
		"the default class of the volumes' driver": {
			s: GroupState{Group: group("g", noClass), Classes: classes, Selected: 2, Sources: two}, op: UpdateGroup,
			check: func(t *testing.T, s Step) {
				require.Equal(t, "other", *s.Group.Spec.VolumeGroupSnapshotClassName)
			},
		},
		"no default class": {
			s: GroupState{Group: group("g", noClass), Classes: classes[:1], Selected: 2, Sources: two}, op: UpdateGroupStatus,
			reason: "SetDefaultGroupSnapshotClassFailed", check: says("cannot find default group snapshot class"),
		},
		"two default classes": {
			s: GroupState{
				Group:    group("g", noClass),
				Classes:  append(classes, groupClass("third", isDefaultGroup)),
				Selected: 2,
				Sources:  two,
			}, op: UpdateGroupStatus, reason: "SetDefaultGroupSnapshotClassFailed",
			check: says("2 default group snapshot classes were found: other, third"),
		},
		"no such class": {
			s: GroupState{Group: group("g"), Selected: 2, Sources: two}, op: UpdateGroupStatus,
			reason: "GroupSnapshotContentCreationFailed", check: says(`"class" not found`),
		},
		"nothing is selected": {
			s: GroupState{Group: group("g"), Classes: classes}, op: UpdateGroupStatus,
			reason: "GroupSnapshotContentCreationFailed",
			check:  says("no persistentvolumeclaim of the namespace matches the label selector app=db"),
		},
		"too many are": {
			s: GroupState{Group: group("g"), Classes: classes, Selected: 10000}, op: UpdateGroupStatus,
			reason: "GroupSnapshotContentCreationFailed",
			check:  says("matches more than 1000 persistentvolumeclaims, the maximum of a group"),
		},
		"one has no volume yet": {
			s:  of(sourceNamed("b", func(s *Source) { s.Volume, s.Claim.Status.Phase = nil, corev1.ClaimPending })),
			op: UpdateGroupStatus, reason: "GroupSnapshotContentCreationFailed",
			check: says("the PVC b is not yet bound"),
		},
		"one is of another driver": {
			s: of(sourceNamed("b", func(s *Source) { s.Volume.Spec.CSI.Driver = "e.example.com" })), op: UpdateGroupStatus,
			reason: "GroupSnapshotContentCreationFailed",
			check:  says(`"a" has "d.example.com", "b" has "e.example.com"`),
		},
		"one is local": {
			s: of(sourceNamed("b", local)), op: UpdateGroupStatus, reason: "GroupSnapshotContentCreationFailed",
			check: says("would not be of one point in time"),
		},
		"one is neither": {s: of(sourceNamed("b", func(s *Source) {
			s.Volume.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/x"},
			}
		})), op: UpdateGroupStatus, reason: "GroupSnapshotContentCreationFailed", check: says("of a CSI driver")},
		"one is being deleted": {
			s: of(sourceNamed("b", func(s *Source) { leaving(s.Claim) })), op: UpdateGroupStatus,
			reason: "GroupSnapshotContentCreationFailed", check: says("is being deleted"),
		},
		"two claims of one volume": {
			s: of(sourceNamed("b", func(s *Source) { s.Volume.Spec.CSI.VolumeHandle = "disk-a" })), op: UpdateGroupStatus,
			reason: "GroupSnapshotContentCreationFailed", check: says("Duplicate value"),
		},
		"names too long for one object": {
			s:  of(sourceNamed("b", func(s *Source) { s.Volume.Spec.CSI.VolumeHandle = strings.Repeat("x", 5000) })),
			op: UpdateGroupStatus, reason: "GroupSnapshotContentCreationFailed", check: says("Too long"),
		},
		"the class is of another driver": {
			s: GroupState{
				Group: group("g"),
				Classes: []*snapshots.VolumeGroupSnapshotClass{
					groupClass("class", func(c *snapshots.VolumeGroupSnapshotClass) { c.Driver = "e.example.com" }),
				},
				Selected: 2,
				Sources:  two,
			}, op: UpdateGroupStatus, reason: "GroupSnapshotContentCreationFailed",
			check: says(`for the driver "e.example.com"`),
		},
		"what is wrong is not said again": {
			s: GroupState{
				Group:   group("g", boundGroup, failing("VolumeGroupSnapshotContent [x] is bound to a different group snapshot")),
				Content: groupContent(group("h"), func(c *snapshots.VolumeGroupSnapshotContent) { c.Name = "x" }),
			}, reason: "GroupSnapshotContentMisbound",
		},
		"its content is made": {
			s: GroupState{Group: group("g"), Classes: classes, Selected: 2, Sources: two}, op: CreateGroupContent,
			reason: "CreatingGroupSnapshot", check: func(t *testing.T, s Step) {
				require.Equal(t, []string{"disk-a", "disk-b"}, s.GroupContent.Spec.Source.VolumeHandles)
				require.Equal(t, "groupsnapcontent-uid-g", s.GroupContent.Name)
			},
		},
		"with the name of its Secret": {
			s: GroupState{
				Group: group("g"),
				Classes: []*snapshots.VolumeGroupSnapshotClass{groupClass("class", func(c *snapshots.VolumeGroupSnapshotClass) {
					c.Parameters = map[string]string{
						snapshots.GroupSecretNameParameter:      "key-${volumegroupsnapshot.name}",
						snapshots.GroupSecretNamespaceParameter: "${volumegroupsnapshot.namespace}",
					}
				})}, Selected: 2, Sources: two,
			}, op: CreateGroupContent, reason: "CreatingGroupSnapshot", check: func(t *testing.T, s Step) {
				require.Equal(t, "key-g", s.GroupContent.Annotations[snapshots.GroupSecretNameAnnotation])
			},
		},
		"bound":       {s: GroupState{Group: group("g"), Content: groupContent(group("g"))}, op: UpdateGroupStatus},
		"being taken": {s: GroupState{Group: group("g", boundGroup), Content: groupContent(group("g"))}},
		"the driver failed": {
			s: GroupState{
				Group: group("g", boundGroup), Content: groupContent(group("g"), func(c *snapshots.VolumeGroupSnapshotContent) {
					c.Status = &snapshots.VolumeGroupSnapshotContentStatus{
						ReadyToUse: new(false), Error: &snapshots.VolumeSnapshotError{Message: new("rpc error: code = Unimplemented")},
					}
				}),
			}, op: UpdateGroupStatus, check: says("Unimplemented"),
		},

		"taken: its snapshots are made": {
			s: groupOfTwo(group("g", boundGroup)), op: WriteMembers, check: func(t *testing.T, s Step) {
				require.Len(t, s.Members, 2)
				v := s.Members[0].Snapshot
				require.Equal(t, "a", *v.Spec.Source.PersistentVolumeClaimName)
				require.Contains(t, v.Finalizers, snapshots.InGroupFinalizer)
				require.True(t, owned(v, group("g")))
				require.Regexp(t, "^snapshot-[0-9a-f]{64}$", v.Name)
			},
		},
		"of a volume that is gone": {
			s: func() GroupState { s := groupOfTwo(group("g", boundGroup)); s.Volumes = nil; return s }(), op: WriteMembers,
			check: func(t *testing.T, s Step) {
				require.Regexp(t, "^snapcontent-[0-9a-f]{64}$", *s.Members[0].Snapshot.Spec.Source.VolumeSnapshotContentName)
			},
		},
		"of another namespace's volume": {s: func() GroupState {
			s := groupOfTwo(group("g", boundGroup))
			s.Volumes["disk-a"].Spec.ClaimRef.Namespace = "others"
			return s
		}(), op: WriteMembers, check: func(t *testing.T, s Step) {
			require.Nil(t, s.Members[0].Snapshot.Spec.Source.PersistentVolumeClaimName)
		}},
		"then their contents": {
			s: groupOfTwo(group("g", boundGroup), only(true, false), whole), op: WriteMembers,
			check: func(t *testing.T, s Step) {
				require.Len(t, s.Members, 1)
				c := s.Members[0].Content
				require.Equal(t, "disk-a", *c.Spec.Source.VolumeHandle)
				require.Equal(t, "group", c.Annotations[snapshots.GroupHandleAnnotation],
					"else the driver would be asked for it again")
				require.NotEmpty(t, c.Spec.VolumeSnapshotRef.UID)
			},
		},
		"then what the driver says": {
			s: groupOfTwo(group("g", boundGroup), only(true, true), whole), op: WriteMembers, check: func(t *testing.T, s Step) {
				require.Len(t, s.Members, 1)
				require.Equal(t, UpdateContentStatus, s.Members[0].Op)
				require.Equal(t, "snap-of-disk-a group",
					*s.Members[0].Content.Status.SnapshotHandle+" "+*s.Members[0].Content.Status.VolumeGroupSnapshotHandle)
			},
		},
		"the driver does not say of which group": {
			s: groupOfTwo(group("g", boundGroup),
				func(v *snapshots.VolumeSnapshot, c *snapshots.VolumeSnapshotContent) (bool, bool) {
					defer func() { c.Status.VolumeGroupSnapshotHandle, c.Status.CreationTime = nil, new(int64(7e9)) }()
					return whole(v, c)
				}, whole), op: WriteMembers, check: func(t *testing.T, s Step) {
				require.Len(t, s.Members, 1)
				require.Equal(t, "group", *s.Members[0].Content.Status.VolumeGroupSnapshotHandle)
				require.EqualValues(t, 7e9, *s.Members[0].Content.Status.CreationTime)
			},
		},
		"ready when all are there": {
			s: groupOfTwo(group("g", boundGroup), whole, whole), op: UpdateGroupStatus, reason: "GroupSnapshotReady",
		},
		"one of the name is another's": {
			s: groupOfTwo(group("g", boundGroup),
				func(v *snapshots.VolumeSnapshot, _ *snapshots.VolumeSnapshotContent) (bool, bool) {
					v.OwnerReferences = nil
					return true, false
				}), op: UpdateGroupStatus,
			reason: "SnapshotsOfGroupFailed", check: says("that is not the group's"),
		},
		"the driver forgot a volume": {s: func() GroupState {
			s := groupOfTwo(group("g", boundGroup), whole)
			s.Content.Status.VolumeSnapshotInfoList = s.Content.Status.VolumeSnapshotInfoList[:1]
			return s
		}(), op: UpdateGroupStatus, reason: "GroupSnapshotIncomplete", check: says(`no snapshot of the volume "disk-b"`)},
		"the driver took another volume": {s: func() GroupState {
			s := groupOfTwo(group("g", boundGroup))
			s.Content.Status.VolumeSnapshotInfoList[0].VolumeHandle = "disk-c"
			return s
		}(), op: UpdateGroupStatus, reason: "GroupSnapshotIncomplete", check: says(`"disk-c", which is not in the group`)},
		"ready, and nothing is left to do": {
			s: groupOfTwo(group("g", readyGroup, func(g *snapshots.VolumeGroupSnapshot) {
				g.Status.CreationTime = &metav1.Time{Time: now}
			})),
		},
		"ready, its content is gone": {
			s: GroupState{Group: group("g", readyGroup)}, op: UpdateGroupStatus, reason: "GroupSnapshotContentMissing",
		},
		"existing, not there yet": {
			s: GroupState{Group: group("g", existingGroup)}, op: UpdateGroupStatus, reason: "GroupSnapshotContentMissing",
		},
		"existing, bound": {
			s: GroupState{
				Group: group("g", existingGroup), Content: groupContent(group("g", existingGroup), existingHandles, unboundGroup),
			}, op: UpdateGroupContent, check: func(t *testing.T, s Step) {
				require.EqualValues(t, "uid-g", s.GroupContent.Spec.VolumeGroupSnapshotRef.UID)
			},
		},
		"existing, bound without a class": {
			s: GroupState{
				Group: group("g", existingGroup),
				Content: groupContent(group("g", existingGroup), existingHandles, func(c *snapshots.VolumeGroupSnapshotContent) {
					c.Spec.VolumeGroupSnapshotClassName = nil
				}),
			}, op: UpdateGroupContent, check: func(t *testing.T, s Step) {
				require.Equal(t, "class", *s.GroupContent.Spec.VolumeGroupSnapshotClassName)
			},
		},
		"existing, ready, its class is named later": {
			s: GroupState{
				Group: group("g", existingGroup, readyGroup),
				Content: groupContent(group("g", existingGroup), existingHandles, takenGroup,
					func(c *snapshots.VolumeGroupSnapshotContent) {
						c.Spec.VolumeGroupSnapshotClassName, c.Status.CreationTime = nil, nil
					}),
			},
		},
		"existing, another's": {
			s:  GroupState{Group: group("g", existingGroup), Content: groupContent(group("h", existingGroup), existingHandles)},
			op: UpdateGroupStatus, reason: "GroupSnapshotContentMisbound",
		},
		"existing, but to be taken": {
			s:  GroupState{Group: group("g", existingGroup), Content: groupContent(group("g", existingGroup))},
			op: UpdateGroupStatus, reason: "GroupSnapshotContentMismatch",
		},
		"existing, its class is another": {
			s: GroupState{
				Group: group("g", existingGroup),
				Content: groupContent(group("g", existingGroup), existingHandles, unboundGroup,
					func(c *snapshots.VolumeGroupSnapshotContent) { c.Spec.VolumeGroupSnapshotClassName = new("foreign") }),
			}, op: UpdateGroupStatus, reason: "GroupSnapshotBindFailed", check: says(`of the class "foreign"`),
		},
		"existing, its class is of a driver": {
			s: GroupState{
				Group:   group("g", existingGroup),
				Classes: classes,
				Content: groupContent(group("g", existingGroup), existingHandles, unboundGroup,
					func(c *snapshots.VolumeGroupSnapshotContent) { c.Spec.Driver = "e.example.com" }),
			}, op: UpdateGroupStatus, reason: "GroupSnapshotBindFailed", check: says(`is for the driver "d.example.com"`),
		},

		"deleted: its snapshots first": {
			s: groupOfTwo(group("g", readyGroup, deletedGroup), whole, whole), op: WriteMembers,
			check: func(t *testing.T, s Step) {
				require.Len(t, s.Members, 2)
				require.Equal(t, DeleteSnapshot, s.Members[0].Op)
			},
		},
		"the driver may": {
			s:  GroupState{Group: group("g", readyGroup, deletedGroup), Content: groupContent(group("g"), takenGroup)},
			op: UpdateGroupContent, check: func(t *testing.T, s Step) {
				require.Contains(t, s.GroupContent.Annotations, snapshots.GroupDeletingAnnotation)
			},
		},
		"with its content": {
			s: GroupState{
				Group: group("g", readyGroup, deletedGroup), Content: groupContent(group("g"), takenGroup, toldGroup),
			},
			op: DeleteGroupContent,
		},
		"which the driver deletes": {
			s: GroupState{
				Group: group("g", readyGroup, deletedGroup),
				Content: groupContent(group("g"), takenGroup, toldGroup, func(c *snapshots.VolumeGroupSnapshotContent) {
					c.DeletionTimestamp = &metav1.Time{}
				}),
			},
		},
		"gone": {
			s: GroupState{Group: group("g", readyGroup, deletedGroup)}, op: UpdateGroup,
			check: func(t *testing.T, s Step) { require.Empty(t, s.Group.Finalizers) },
		},
		"its content is kept": {
			s: GroupState{
				Group: group("g", readyGroup, deletedGroup),
				Content: groupContent(group("g"), takenGroup, toldGroup, func(c *snapshots.VolumeGroupSnapshotContent) {
					c.Spec.DeletionPolicy = snapshots.Retain
				}),
			}, op: UpdateGroup,
		},
		"another's content stays": {
			s: GroupState{
				Group: group("g", existingGroup, deletedGroup), Content: groupContent(group("h", existingGroup), existingHandles),
			}, op: UpdateGroup,
		},
		"deleted while it restores": {
			s: GroupState{
				Group:     group("g", readyGroup, deletedGroup),
				Content:   groupContent(group("g"), takenGroup),
				Restoring: []string{"d"},
			}, reason: "SnapshotDeletePending",
		},
	} {
		t.Run(name, func(t *testing.T) {
			step := PlanGroup(tt.s, now)
			require.Equal(t, tt.op, step.Op, "%+v", step.Event)
			reason := ""
			if step.Event != nil {
				reason = step.Event.Reason
			}
			require.Equal(t, tt.reason, reason)
			if tt.check != nil {
				tt.check(t, step)
			}
		})
	}
}

func failing(message string) func(*snapshots.VolumeGroupSnapshot) {
	return func(g *snapshots.VolumeGroupSnapshot) {
		g.Status.Error = &snapshots.VolumeSnapshotError{Message: &message}
	}
}

func only(withSnapshot, withContent bool) func(*snapshots.VolumeSnapshot,
	*snapshots.VolumeSnapshotContent) (bool, bool) {
	return func(*snapshots.VolumeSnapshot, *snapshots.VolumeSnapshotContent) (bool, bool) {
		return withSnapshot, withContent
	}
}

// The content of a group with the maximum number of volumes fits into one object, even with the longest handles
// that the CSI specification recommends.
func TestTheLargestGroupIsTaken(t *testing.T) {
	s := GroupState{
		Group:    group("g"),
		Classes:  []*snapshots.VolumeGroupSnapshotClass{groupClass("class")},
		Selected: snapshots.MaxGroup,
	}
	for i := range snapshots.MaxGroup {
		s.Sources = append(s.Sources, sourceNamed(fmt.Sprintf("%0251d", i)))
	}
	require.Equal(t, CreateGroupContent, PlanGroup(s, now).Op)
}

func TestPlanSnapshotOfAGroup(t *testing.T) {
	g := group("g", readyGroup)
	v, c := member(g, "a")
	taken(c)
	c.Status.VolumeGroupSnapshotHandle = new("group")
	require.Equal(t, c.Name, contentOf(v))

	step := PlanSnapshot(State{Snapshot: v, Group: g}, now)
	require.Equal(t, Step{}, step, "its group's plan makes its content; it has no class and takes nothing")
	step = PlanSnapshot(State{Snapshot: v, Content: c, Group: g}, now)
	require.Equal(t, UpdateSnapshotStatus, step.Op)
	require.Equal(t, "g true",
		fmt.Sprint(*step.Snapshot.Status.VolumeGroupSnapshotName, " ", *step.Snapshot.Status.ReadyToUse))

	deleted(v)
	step = PlanSnapshot(State{Snapshot: v, Content: c, Group: g}, now)
	require.Equal(t, Nothing, step.Op)
	require.Equal(t, "SnapshotDeletePending", step.Event.Reason)
	require.Equal(t, Step{}, PlanSnapshot(State{Snapshot: v, Content: c, Group: group("g", deletedGroup)}, now))
	require.Equal(t, UpdateContent, PlanSnapshot(State{Snapshot: v, Content: c}, now).Op, "its group is gone")
	step = PlanSnapshot(State{Snapshot: v}, now)
	require.Empty(t, step.Snapshot.Finalizers)

	// If its volume is gone, a group's snapshot names its content, which the group's plan has yet to create.
	v, _ = member(g, "a")
	v.Spec.Source = snapshots.VolumeSnapshotSource{VolumeSnapshotContentName: new(memberContent(v.Name))}
	require.Equal(t, Step{}, PlanSnapshot(State{Snapshot: v, Group: g}, now))
	v.Spec.Source.VolumeSnapshotContentName = new("other")
	require.Equal(t, "SnapshotContentMissing", PlanSnapshot(State{Snapshot: v, Group: g}, now).Event.Reason)

	// A pre-provisioned snapshot that belongs to the driver's group joins the group.
	v = snapshot("old", existing, isReady)
	v.Status.VolumeGroupSnapshotName = new("g")
	c = content(v, handle, taken)
	v.Status.CreationTime, v.Status.RestoreSize = PlanSnapshot(State{
		Snapshot: v, Content: c,
	}, now).Snapshot.Status.CreationTime, PlanSnapshot(State{Snapshot: v, Content: c}, now).Snapshot.Status.RestoreSize
	step = PlanSnapshot(State{Snapshot: v, Content: c, Group: g}, now)
	require.Equal(t, UpdateSnapshot, step.Op)
	require.True(t, owned(step.Snapshot, g))
	require.Equal(t, Nothing, PlanSnapshot(State{Snapshot: step.Snapshot, Content: c, Group: g}, now).Op)
}

func TestPlanGroupContent(t *testing.T) {
	plain := func(c *snapshots.VolumeGroupSnapshotContent) { c.Finalizers = nil }
	require.Equal(t, UpdateGroupContent, PlanGroupContent(groupContent(group("g"), plain)).Op)
	require.Equal(t, Nothing, PlanGroupContent(groupContent(group("g"))).Op)
	require.Equal(t, Nothing, PlanGroupContent(groupContent(group("g"), plain, unboundGroup)).Op)
	require.Equal(t, Nothing,
		PlanGroupContent(engine.Changed(groupContent(group("g"), plain), func(c *snapshots.VolumeGroupSnapshotContent) {
			c.DeletionTimestamp = &metav1.Time{}
		})).Op)
}
