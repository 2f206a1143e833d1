package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
)

// podDefaults allows unprivileged processes to bind low ports and to ping, as containerd and CRI-O do.
func podDefaults() error {
	for path, value := range map[string]string{
		"/proc/sys/net/ipv4/ip_unprivileged_port_start": "0",
		"/proc/sys/net/ipv4/ping_group_range":           "0 2147483647",
	} {
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

// forwarding lets the machine forward packets. Docker turns it on at its start, if it is off.
const forwarding = "net/ipv4/ip_forward"

// setSysctl sets a sysctl of the node and saves its previous value for Reset.
func (c *Config) setSysctl(name, value string) error {
	path := "/proc/sys/" + name
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	old := strings.TrimSpace(string(data))
	if old == value {
		return nil
	}
	kept, err := c.savedSysctls()
	if err != nil {
		return err
	}
	if _, ok := kept[name]; !ok {
		kept[name] = old
		if err := atomicfile.WriteJSON(c.sysctlFile(), kept); err != nil {
			return err
		}
	}
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s=%s: %w (if coracle is not permitted to, set it yourself)",
			strings.ReplaceAll(name, "/", "."), value, err)
	}
	return nil
}

func (c *Config) sysctlFile() string { return filepath.Join(c.RunDir, "sysctls.json") }

func (c *Config) savedSysctls() (map[string]string, error) {
	kept := map[string]string{}
	data, err := os.ReadFile(c.sysctlFile())
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &kept); err != nil {
		return nil, fmt.Errorf("%s: %w", c.sysctlFile(), err)
	}
	return kept, nil
}
