"""Models in other people's file formats: published folders (config.json, safetensors) and GGUF, read strictly."""
