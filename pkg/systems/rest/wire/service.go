package wire

import "time"

// Service is a stable address for a set of pods. Type is ClusterIP, NodePort or LoadBalancer.
type Service struct {
	ServiceID       string            `json:"serviceId"`
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace,omitempty"`
	Type            string            `json:"type"`
	ClusterIP       string            `json:"clusterIp,omitempty"`
	Selector        map[string]string `json:"selector,omitempty"`
	Ports           []ServicePort     `json:"ports"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	SessionAffinity string            `json:"sessionAffinity,omitempty"`
	CreatedAt       time.Time         `json:"createdAt"`
	UpdatedAt       time.Time         `json:"updatedAt"`
}

// ServicePort is a port of a service. TargetPort defaults to Port, Protocol to TCP.
type ServicePort struct {
	Name       string `json:"name,omitempty"`
	Protocol   string `json:"protocol,omitempty"`
	Port       int    `json:"port"`
	TargetPort int    `json:"targetPort,omitempty"`
	NodePort   int    `json:"nodePort,omitempty"`
}

// CreateService is the body of POST /api/v1/services. Name, Selector and Ports are required.
type CreateService struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace,omitempty"`
	Type            string            `json:"type,omitempty"`
	Selector        map[string]string `json:"selector"`
	Ports           []ServicePort     `json:"ports"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	SessionAffinity string            `json:"sessionAffinity,omitempty"`
}

// UpdateService is the body of PUT /api/v1/services/{id}. Absent fields stay unchanged.
type UpdateService struct {
	Selector        *map[string]string `json:"selector,omitempty"`
	Ports           *[]ServicePort     `json:"ports,omitempty"`
	Labels          *map[string]string `json:"labels,omitempty"`
	Annotations     *map[string]string `json:"annotations,omitempty"`
	SessionAffinity *string            `json:"sessionAffinity,omitempty"`
}

// Endpoints are the addresses behind a service.
type Endpoints struct {
	ServiceID   string           `json:"serviceId"`
	ServiceName string           `json:"serviceName"`
	Namespace   string           `json:"namespace"`
	Subsets     []EndpointSubset `json:"subsets"`
	UpdatedAt   time.Time        `json:"updatedAt"`
}

// EndpointSubset is a group of addresses with the same ports.
type EndpointSubset struct {
	Addresses         []EndpointAddress `json:"addresses"`
	NotReadyAddresses []EndpointAddress `json:"notReadyAddresses,omitempty"`
	Ports             []EndpointPort    `json:"ports"`
}

// EndpointAddress is the address of a pod.
type EndpointAddress struct {
	IP     string `json:"ip"`
	PodID  string `json:"podId"`
	NodeID string `json:"nodeId,omitempty"`
}

// EndpointPort is a port of an address.
type EndpointPort struct {
	Name     string `json:"name,omitempty"`
	Port     int    `json:"port"`
	Protocol string `json:"protocol,omitempty"`
}
