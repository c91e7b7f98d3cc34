"""One engine process: the pod it lives in, the engine, the models, the OpenAI server."""
