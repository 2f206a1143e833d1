package devices

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// maxCheckpoint limits the file of assignments, maxResponse a plugin's response in it, both in bytes.
const (
	maxCheckpoint = 64 << 20
	maxResponse   = 64 << 10
)

type checkpoint struct {
	// Resources are the registered resources, which have no devices until their plugins register again.
	Resources []string                                        `json:"resources,omitempty"`
	Assigned  map[types.UID]map[string]map[string]*assignment `json:"assigned,omitempty"`
}

func (m *Manager) load() error {
	data, err := bounded.File(m.c.File, maxCheckpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the assignments of devices: %w", err)
	}
	var c checkpoint
	if err := json.Unmarshal(data, &c); err != nil {
		// The file is replaced atomically, so the machine lost power, and with it all containers.
		m.c.Logger.Warn("unreadable assignments of devices", "path", m.c.File, "error", err)
		return nil
	}
	for _, name := range c.Resources {
		m.resources[name] = &resourceState{}
	}
	for uid, containers := range c.Assigned {
		if len(containers) > 0 {
			m.assigned[uid] = containers
		}
	}
	return nil
}

// save replaces the file atomically. Called with the lock held.
func (m *Manager) save() error {
	c := checkpoint{Assigned: m.assigned}
	for name := range m.resources {
		c.Resources = append(c.Resources, name)
	}
	if err := os.MkdirAll(filepath.Dir(m.c.File), 0o700); err != nil {
		return err
	}
	if err := atomicfile.WriteJSON(m.c.File, c); err != nil {
		return fmt.Errorf("record the assignments of devices: %w", err)
	}
	return nil
}

func (m *Manager) answered(uid types.UID, container, name string,
	response *deviceplugin.ContainerAllocateResponse) error {
	data, err := proto.Marshal(response)
	if err != nil {
		return err
	}
	if len(data) > maxResponse {
		return fmt.Errorf("the device plugin of %s sent a response of %d bytes, at most %d are accepted", name, len(data),
			maxResponse)
	}
	if len(data) == 0 { // distinguishes an empty response from none
		data, err = proto.Marshal(&deviceplugin.ContainerAllocateResponse{Annotations: map[string]string{"": ""}})
		if err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.assigned[uid][container][name]
	if a == nil {
		return errors.New("the pod has released its devices")
	}
	a.Response = data
	if err := m.save(); err != nil {
		return err
	}
	return m.c.Failpoints.At("device.recorded")
}

func decode(data []byte) (*deviceplugin.ContainerAllocateResponse, error) {
	response := &deviceplugin.ContainerAllocateResponse{}
	if err := proto.Unmarshal(data, response); err != nil {
		return nil, fmt.Errorf("recorded response of a device plugin: %w", err)
	}
	return response, nil
}
