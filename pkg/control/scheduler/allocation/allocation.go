// Package allocation allocates devices to resource claims with upstream's allocator of structured parameters
// (KEP-4381). It is separate from the scheduler because the allocator links the API server's CEL, which other
// importers of the scheduler must not link.
package allocation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/coracle-dev/coracle/pkg/control/scheduler"
)

// expressions is the number of cached CEL expressions, as upstream.
const expressions = 128

// features are the features that upstream 1.37 enables by default.
var features = structured.Features{
	AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
	FractionalCapacityRange: true,
	PartitionableDevices:    true, PrioritizedList: true,
}

// New returns a function that creates allocators. Nothing is compiled before the first use.
func New() func(context.Context, scheduler.Inventory) (scheduler.Allocate, error) {
	compiled := sync.OnceValue(func() *cel.Cache {
		return cel.NewCache(expressions, cel.Features{EnableConsumableCapacity: features.ConsumableCapacity})
	})
	return func(ctx context.Context, in scheduler.Inventory) (scheduler.Allocate, error) {
		a, err := structured.NewAllocator(ctx, features, state(in.Allocated), classes(in.Class), in.Slices, compiled())
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, node *corev1.Node,
			claims []*resourcev1.ResourceClaim) ([]resourcev1.AllocationResult, error) {
			if err := known(in.Class, claims); err != nil {
				return nil, err
			}
			found, err := a.Allocate(ctx, node, claims)
			if errors.Is(err, structured.ErrFailedAllocationOnNode) {
				err = fmt.Errorf("%w%w", scheduler.ErrNotOnNode, err)
			}
			return found, err
		}, nil
	}
}

// known returns upstream's error if a claim refers to a missing class.
func known(class func(string) (*resourcev1.DeviceClass, error), claims []*resourcev1.ResourceClaim) error {
	missing := func(request, name string) error {
		if _, err := class(name); err != nil {
			return fmt.Errorf("request %s: device class %s does not exist", request, name)
		}
		return nil
	}
	for _, c := range claims {
		for _, r := range c.Spec.Devices.Requests {
			if r.Exactly != nil {
				if err := missing(r.Name, r.Exactly.DeviceClassName); err != nil {
					return err
				}
			}
			for _, sub := range r.FirstAvailable {
				if err := missing(strings.Join([]string{r.Name, sub.Name}, "/"), sub.DeviceClassName); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// state returns the devices that allocations use. Devices used with admin access stay available to others.
func state(allocated []*resourcev1.AllocationResult) structured.AllocatedState {
	out := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	for _, a := range allocated {
		for _, r := range a.Devices.Results {
			if r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			if r.ShareID == nil {
				out.AllocatedDevices.Insert(id)
				continue
			}
			out.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			if r.ConsumedCapacity != nil {
				out.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
			}
		}
	}
	return out
}

// classes implements structured.DeviceClassLister.
type classes func(name string) (*resourcev1.DeviceClass, error)

func (c classes) Get(name string) (*resourcev1.DeviceClass, error) { return c(name) }

// List fails: the allocator looks classes up by name.
func (c classes) List() ([]*resourcev1.DeviceClass, error) {
	return nil, errors.New("device classes are looked up by name")
}
