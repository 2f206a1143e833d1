package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxBlocks is the most blocks that bb_storage manages on a device (pkg/blobstore/configuration of bb-storage).
const maxBlocks = 100

// replaced are the stores that may overwrite an object under the same key.
var replaced = []protoreflect.Name{
	"action_cache", "indirect_content_addressable_storage", "initial_size_class_cache", "file_system_access_cache",
}

// unusable finds values that have the right type, but make the program exit at once or serve no client.
func unusable(m message) *Error {
	switch m.name() {
	case "blobstore.LocalBlobAccessConfiguration":
		return unusableBlocks(m)
	case "bb_worker.RunnerConfiguration":
		return unsorted(m)
	case "bb_scheduler.PredeclaredPlatformQueueConfiguration":
		if e := unusableSizes(m); e != nil {
			return e
		}
		return unsorted(m)
	}
	return nil
}

func unusableBlocks(m message) *Error {
	total := int64(0)
	for _, name := range []protoreflect.Name{"old_blocks", "current_blocks", "new_blocks"} {
		n := m.of(name).Int()
		if n < 0 {
			return m.fail(m.Descriptor().Fields().ByName(name).JSONName(), "must not be negative, but is %d", n)
		}
		total += n
	}
	if n := m.of("new_blocks").Int(); n != 1 &&
		slices.ContainsFunc(m.within, func(f protoreflect.Name) bool { return slices.Contains(replaced, f) }) {
		return m.fail("newBlocks",
			"must be 1 for this store, not %d: replacing its objects is only reliable within one block", n)
	}
	if f := m.WhichOneof(m.Descriptor().Oneofs().ByName("blocks_backend")); f == nil ||
		f.Name() != "blocks_on_block_device" {
		return nil
	}
	device := message{Message: m.of("blocks_on_block_device").Message()}
	total += device.of("spare_blocks").Int()
	switch source := (message{Message: device.of("source").Message()}); {
	case total < 1:
		return m.fail("currentBlocks",
			"there must be at least one block: the sum of oldBlocks, currentBlocks, newBlocks and spareBlocks is %d", total)
	case total > maxBlocks:
		return m.fail("currentBlocks",
			"the sum of oldBlocks, currentBlocks, newBlocks and spareBlocks is %d; it must be at most %d", total, maxBlocks)
	case source.Has(source.Descriptor().Fields().ByName("file")):
		file := message{Message: source.of("file").Message()}
		if n := file.of("size_bytes").Int(); n < total*sector {
			return &Error{Path: join(m.path, "blocksOnBlockDevice.source.file.sizeBytes"), Field: "sizeBytes",
				Problem: fmt.Sprintf("%d bytes are too few for %d blocks of at least %d bytes", n, total, sector)}
		}
	}
	return nil
}

// sector is the smallest block that bb_storage accepts, in bytes, on machines with the smallest pages.
const sector = 4096

func unusableSizes(m message) *Error {
	list := m.of("size_classes").List()
	for i := 1; i < list.Len(); i++ {
		if list.Get(i-1).Uint() >= list.Get(i).Uint() {
			return m.fail("sizeClasses", "must be sorted, without duplicates: %d is before %d", list.Get(i-1).Uint(),
				list.Get(i).Uint())
		}
	}
	if list.Len() > 1 && list.Get(0).Uint() == 0 {
		return m.fail("sizeClasses", "must be positive if there are several")
	}
	return nil
}

// unsorted finds platform properties that are not in the Remote Execution API's order; the scheduler refuses them.
func unsorted(m message) *Error {
	list := properties(m)
	for i := 1; i < len(list); i++ {
		if before, p := list[i-1], list[i]; cmp.Or(strings.Compare(before.Name, p.Name),
			strings.Compare(before.Value, p.Value)) >= 0 {
			return m.fail("platform",
				"must be sorted by name, then by value, without duplicates: %s=%s must not come after %s=%s", p.Name, p.Value,
				before.Name, before.Value)
		}
	}
	return nil
}
